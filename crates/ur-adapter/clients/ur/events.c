/* Reusable events between two processes. The client tests repeated signals and waits in both
   directions, on the host and in queues. It also tests the death of a process that should signal.
   Callbacks report the signals and the death. */
#include "ur.h"
#include <semaphore.h>

#define ROUNDS 2
#define SIGNALS 6
#define SIZE ((size_t)64 << 10)

/* A gate that blocks a queue. Later commands in the queue stay pending until the gate is opened. */
struct gate {
  int ends[2];
};

static void pass(void *data) {
  struct gate *gate = data;
  char token;
  (void)!read(gate->ends[0], &token, 1);
}

static struct gate close_gate(void) {
  struct gate gate;
  EXPECT(pipe(gate.ends) == 0);
  return gate;
}

static void enqueue_gate(struct runtime *ur, struct gate *gate) {
  UR(urEnqueueHostTaskExp(ur->queue, pass, gate, NULL, 0, NULL, NULL));
}

static void open_gate(struct gate *gate) { EXPECT(write(gate->ends[1], "o", 1) == 1); }

static void remove_gate(struct gate *gate) {
  close(gate->ends[0]);
  close(gate->ends[1]);
}

static ur_event_handle_t create_event(struct runtime *ur) {
  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL,
                                     UR_EXP_EVENT_FLAG_IPC_EXP};
  ur_event_handle_t event = NULL;
  UR(urEventCreateExp(ur->context, ur->device, &description, &event));
  return event;
}

static struct bytes share_event(struct runtime *ur, ur_event_handle_t event) {
  void *data = NULL;
  size_t size = 0;
  UR(urIPCGetEventHandleExp(event, &data, &size));
  struct bytes bytes = bytes_of(data, size);
  UR(urIPCPutEventHandleExp(ur->context, data));
  return bytes;
}

static ur_event_handle_t open_event(struct runtime *ur, struct bytes handle) {
  ur_event_handle_t event = NULL;
  UR(urIPCOpenEventHandleExp(ur->context, handle.data, handle.size, &event));
  return event;
}

/* Signals the event after all earlier commands in the queue. */
static void signal_event(struct runtime *ur, ur_event_handle_t event) {
  ur_event_handle_t same = event;
  UR(urEnqueueEventsWaitWithBarrierExt(ur->queue, NULL, 0, NULL, &same));
  EXPECT(same == event);
}

static ur_event_status_t status_of(ur_event_handle_t event) {
  ur_event_status_t status = UR_EVENT_STATUS_FORCE_UINT32;
  UR(urEventGetInfo(event, UR_EVENT_INFO_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
  return status;
}

static uint32_t references_of(ur_event_handle_t event) {
  uint32_t count = 0;
  UR(urEventGetInfo(event, UR_EVENT_INFO_REFERENCE_COUNT, sizeof count, &count, NULL));
  return count;
}

/* A callback for an event: whether it was called, and the status that it received. */
struct call {
  sem_t made;
  ur_execution_info_t status;
};

static void note_call(ur_event_handle_t event, ur_execution_info_t status, void *data) {
  (void)event;
  struct call *call = data;
  call->status = status;
  sem_post(&call->made);
}

/* Sets a callback that is called when the event's latest signal is complete. */
static void expect_call(ur_event_handle_t event, struct call *call) {
  EXPECT(sem_init(&call->made, 0, 0) == 0);
  UR(urEventSetCallback(event, UR_EXECUTION_INFO_COMPLETE, note_call, call));
}

static int status_of_call(struct call *call) {
  HERE("an event calls back");
  while (sem_wait(&call->made) != 0)
    EXPECT(errno == EINTR);
  sem_destroy(&call->made);
  return (int)call->status;
}

/* Waits for the event's latest signal, on the host or in the queue. */
static void wait_for(struct runtime *ur, ur_event_handle_t event, bool in_queue) {
  if (in_queue) {
    UR(urEnqueueEventsWaitWithBarrierExt(ur->queue, NULL, 1, &event, NULL));
    UR(urQueueFinish(ur->queue));
  } else {
    UR(urEventWait(1, &event));
  }
  EXPECT(status_of(event) == UR_EVENT_STATUS_COMPLETE);
}

/* Submits a write of the pattern, and a signal. They run only after the other process has seen that
   the signal is pending. */
static void signal_late(struct runtime *ur, int link, ur_event_handle_t event, void *memory,
                        uint32_t number) {
  uint32_t words[SIZE / 4];
  for (size_t i = 0; i < SIZE / 4; i++)
    words[i] = word_of(number, i);
  struct gate gate = close_gate();
  enqueue_gate(ur, &gate);
  UR(urEnqueueUSMMemcpy(ur->queue, false, memory, words, SIZE, 0, NULL, NULL));
  signal_event(ur, event);
  EXPECT(status_of(event) != UR_EVENT_STATUS_COMPLETE);
  MEET(link);
  MEET(link);
  open_gate(&gate);
  UR(urQueueFinish(ur->queue));
  EXPECT(status_of(event) == UR_EVENT_STATUS_COMPLETE);
  remove_gate(&gate);
  MEET(link);
}

/* Waits for the signal that `signal_late` submits in the other process. */
static void wait_pending(struct runtime *ur, int link, ur_event_handle_t event, void *memory,
                         uint32_t number) {
  MEET(link);
  ur_event_status_t status = status_of(event);
  EXPECT(status == UR_EVENT_STATUS_SUBMITTED || status == UR_EVENT_STATUS_RUNNING ||
         status == UR_EVENT_STATUS_QUEUED);
  struct call call;
  expect_call(event, &call);
  EXPECT(sem_trywait(&call.made) != 0);
  MEET(link);
  EXPECT(status_of_call(&call) == UR_EVENT_STATUS_COMPLETE);
  wait_for(ur, event, number % 2);
  EXPECT(has_pattern(ur, memory, SIZE, number, 0));
  MEET(link);
}

static void produce(void) {
  struct peer peer = start_peer("consumer");
  struct runtime ur = start_runtime();
  EXPECT(supports(&ur, UR_DEVICE_INFO_IPC_EVENT_SUPPORT_EXP));
  EXPECT(supports(&ur, UR_DEVICE_INFO_REUSABLE_EVENTS_SUPPORT_EXP));
  void *memory = allocate(&ur, SIZE);
  say_bytes(peer.link, share_memory(&ur, memory));
  for (int round = 0; round < ROUNDS; round++) {
    ur_event_handle_t mine = create_event(&ur);
    EXPECT(status_of(mine) == UR_EVENT_STATUS_COMPLETE);
    say_bytes(peer.link, share_event(&ur, mine));
    ur_event_handle_t theirs = open_event(&ur, hear_bytes(peer.link));
    EXPECT(references_of(theirs) == 1);
    void *data = NULL;
    size_t size = 0;
    ANSWERS(UR_RESULT_ERROR_INVALID_EVENT, urIPCGetEventHandleExp(theirs, &data, &size));
    MEET(peer.link);
    for (uint32_t number = 0; number < SIGNALS; number++) {
      signal_late(&ur, peer.link, mine, memory, number);
      /* Both processes may signal either event. */
      wait_pending(&ur, peer.link, mine, memory, number + 100);
      wait_pending(&ur, peer.link, theirs, memory, number + 200);
      signal_late(&ur, peer.link, theirs, memory, number + 300);
    }
    /* Either process may release the event first. */
    UR(urEventRelease(mine));
    MEET(peer.link);
    MEET(peer.link);
    signal_event(&ur, theirs);
    wait_for(&ur, theirs, true);
    UR(urEventRelease(theirs));
  }
  UR(urUSMFree(ur.context, memory));
  stop_runtime(&ur);
  end_peer(&peer);
}

static void consume(void) {
  struct runtime ur = start_runtime();
  void *memory = open_memory(&ur, hear_bytes(PARENT));
  for (int round = 0; round < ROUNDS; round++) {
    struct bytes handle = hear_bytes(PARENT);
    ur_event_handle_t theirs = open_event(&ur, handle);
    ur_event_handle_t again = open_event(&ur, handle);
    EXPECT(theirs != again);
    EXPECT(status_of(theirs) == UR_EVENT_STATUS_COMPLETE);
    wait_for(&ur, theirs, false);
    ur_event_handle_t mine = create_event(&ur);
    say_bytes(PARENT, share_event(&ur, mine));
    MEET(PARENT);
    for (uint32_t number = 0; number < SIGNALS; number++) {
      wait_pending(&ur, PARENT, theirs, memory, number);
      signal_late(&ur, PARENT, theirs, memory, number + 100);
      EXPECT(status_of(again) == UR_EVENT_STATUS_COMPLETE);
      signal_late(&ur, PARENT, mine, memory, number + 200);
      wait_pending(&ur, PARENT, mine, memory, number + 300);
    }
    MEET(PARENT);
    UR(urEventRetain(theirs));
    EXPECT(references_of(theirs) == 2);
    UR(urEventRelease(theirs));
    EXPECT(references_of(theirs) == 1);
    UR(urEventRelease(again));
    signal_event(&ur, theirs);
    wait_for(&ur, theirs, false);
    UR(urEventRelease(theirs));
    UR(urEventRelease(mine));
    MEET(PARENT);
  }
  UR(urIPCCloseMemHandleExp(ur.context, memory));
  stop_runtime(&ur);
}

/* Checks that a wait returns an error if the process that should signal dies. */
static void outlive(bool in_queue) {
  struct peer peer = start_peer("promiser");
  struct runtime ur = start_runtime();
  ur_event_handle_t event = open_event(&ur, hear_bytes(peer.link));
  EXPECT(status_of(event) != UR_EVENT_STATUS_COMPLETE);
  struct call call;
  expect_call(event, &call);
  if (in_queue) {
    ur_event_handle_t after = NULL;
    UR(urEnqueueEventsWaitWithBarrierExt(ur.queue, NULL, 1, &event, &after));
    kill_peer(&peer);
    /* A queue on the host fails if the event that it waits for fails. A queue on a GPU
       continues. */
    ur_result_t result = urEventWait(1, &after);
    if (device_type_of(&ur) != UR_DEVICE_TYPE_GPU || result != UR_RESULT_SUCCESS)
      EXPECT(result == UR_RESULT_ERROR_IN_EVENT_LIST_EXEC_STATUS);
    EXPECT(status_of(event) == UR_EVENT_STATUS_ERROR);
    UR(urEventRelease(after));
  } else {
    kill_peer(&peer);
    ANSWERS(UR_RESULT_ERROR_IN_EVENT_LIST_EXEC_STATUS, urEventWait(1, &event));
    EXPECT(status_of(event) == UR_EVENT_STATUS_ERROR);
  }
  EXPECT(status_of_call(&call) == UR_EVENT_STATUS_ERROR);
  UR(urEventRelease(event));
  stop_runtime(&ur);
}

static void promise(void) {
  struct runtime ur = start_runtime();
  ur_event_handle_t event = create_event(&ur);
  struct gate gate = close_gate();
  enqueue_gate(&ur, &gate);
  signal_event(&ur, event);
  say_bytes(PARENT, share_event(&ur, event));
  char nothing;
  hear_or_end(PARENT, &nothing, 1);
}

int main(int count, char **arguments) {
  limit_life();
  const char *role = count > 1 ? arguments[1] : "";
  if (strcmp(role, "consumer") == 0) {
    consume();
  } else if (strcmp(role, "promiser") == 0) {
    promise();
  } else {
    produce();
    outlive(false);
    outlive(true);
  }
  return 0;
}
