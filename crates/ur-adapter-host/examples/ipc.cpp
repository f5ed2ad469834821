// Two processes write to the same device memory, and wait for each other's events. They exchange
// only handles, which are small. In this example, the handles travel through pipes:
//
//     mkfifo back; ./ipc producer <back | ./ipc consumer >back; rm back

#include <iostream>
#include <string>
#include <sycl/sycl.hpp>

namespace syclex = sycl::ext::oneapi::experimental;
namespace ipc = syclex::ipc;

void send(const ipc::handle &handle) {
  auto data = handle.data();
  std::cout << data.size() << ' ';
  std::cout.write(reinterpret_cast<const char *>(data.data()), data.size()).flush();
}

ipc::handle_data_t receive() {
  size_t size;
  std::cin >> size;
  ipc::handle_data_t data(size);
  std::cin.ignore(1).read(reinterpret_cast<char *>(data.data()), size);
  return data;
}

void produce(sycl::queue queue, sycl::context context, sycl::event asked) {
  char text[] = "ping";
  char *memory = sycl::malloc_device<char>(1 << 20, queue);
  queue.copy(text, memory, sizeof text);
  syclex::enqueue_signal_event(queue, asked);
  send(ipc::memory::get(memory, context));
  send(ipc::event::get(asked));

  sycl::event answered = ipc::event::open(receive(), context);
  syclex::enqueue_wait_event(queue, answered);
  queue.copy(memory, text, sizeof text).wait();
  std::cerr << "producer: " << text << '\n';
}

void consume(sycl::queue queue, sycl::context context, sycl::event answered) {
  char text[5];
  auto memory = static_cast<char *>(ipc::memory::open(receive(), context, queue.get_device()));
  sycl::event asked = ipc::event::open(receive(), context);
  syclex::enqueue_wait_event(queue, asked);
  queue.copy(memory, text, sizeof text).wait();
  std::cerr << "consumer: " << text << '\n';

  queue.copy("pong", memory, sizeof text);
  syclex::enqueue_signal_event(queue, answered);
  send(ipc::event::get(answered));
  std::cin.get(); // returns when the producer has ended
}

int main(int, char **arguments) {
  sycl::queue queue{sycl::property::queue::in_order{}};
  auto event = syclex::make_event(queue.get_context(), syclex::properties{syclex::enable_ipc{}});
  bool is_producer = arguments[1] == std::string("producer");
  (is_producer ? produce : consume)(queue, queue.get_context(), event);
}
