/* Forks while other threads open and close objects. The child can open and close objects too, even
 * if a thread of its parent held a lock of the library during the fork. */

#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2, FORKS = 100, DEADLINE_S = 60 };

static atomic_bool is_over;

static void open_and_close(void)
{
    crosshandle_device *device;
    EXPECT(CROSSHANDLE_OK, crosshandle_device_find("host", &device));
    EXPECT(CROSSHANDLE_OK, crosshandle_device_close(device));
}

static void *work(void *user)
{
    (void)user;
    while (!is_over)
        open_and_close();
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++)
        CHECK(pthread_create(&threads[index], NULL, work, NULL) == 0);
    for (int count = 0; count < FORKS; count++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(DEADLINE_S);
            for (int index = 0; index < 200; index++)
                open_and_close();
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    is_over = true;
    for (int index = 0; index < THREADS; index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    puts("children open and close objects");
    return 0;
}
