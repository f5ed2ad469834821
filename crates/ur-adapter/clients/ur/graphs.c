/* Queues record their submissions into graphs. Two processes compute in turns, with graphs on
   shared memory that events order. The client also tests forks to other queues, events from outside
   a capture, events and host tasks inside a graph, graphs within graphs, objects that graphs keep
   alive, and operations that graphs cannot record. */
#include "kernels.h"
#include <unistd.h>

enum { COUNT = 1 << 12, BLOCK = 4 * COUNT, ROUNDS = 24, REPLAYS = 501, WAVES = 3 };

static ur_event_handle_t shared_event(struct runtime *ur) {
  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL, UR_EXP_EVENT_FLAG_IPC_EXP};
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

static ur_queue_handle_t create_queue(struct runtime *ur, bool in_order) {
  ur_queue_properties_t properties = {UR_STRUCTURE_TYPE_QUEUE_PROPERTIES, NULL,
                                      in_order ? 0 : UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE};
  ur_queue_handle_t queue = NULL;
  UR(urQueueCreate(ur->context, ur->device, &properties, &queue));
  return queue;
}

static void enqueue_copy(ur_queue_handle_t queue, void *to, const void *from, size_t size,
                         ur_event_handle_t after, ur_event_handle_t *event) {
  UR(urEnqueueUSMMemcpy(queue, false, to, from, size, after != NULL, after ? &after : NULL, event));
}

static void fill(ur_queue_handle_t queue, void *memory, uint32_t value, size_t size) {
  UR(urEnqueueUSMFill(queue, memory, sizeof value, &value, size, 0, NULL, NULL));
}

static bool captures(ur_queue_handle_t queue) {
  bool enabled = false;
  UR(urQueueIsGraphCaptureEnabledExp(queue, &enabled));
  return enabled;
}

static ur_exp_graph_handle_t end(ur_queue_handle_t queue) {
  ur_exp_graph_handle_t graph = NULL;
  UR(urQueueEndGraphCaptureExp(queue, &graph));
  EXPECT(graph != NULL && !captures(queue));
  return graph;
}

/* Ends a capture and instantiates its graph. Returns the executable graph. The original graph is
   then destroyed. */
static ur_exp_executable_graph_handle_t end_and_instantiate(ur_queue_handle_t queue) {
  ur_exp_graph_handle_t graph = end(queue);
  ur_exp_executable_graph_handle_t executable = NULL;
  UR(urGraphInstantiateGraphExp(graph, &executable));
  UR(urGraphDestroyExp(graph));
  return executable;
}

static void run(ur_queue_handle_t queue, ur_exp_executable_graph_handle_t graph) {
  UR(urEnqueueGraphExp(queue, graph, 0, NULL, NULL));
}

/* Runs a graph after the latest signal of `before`. Signals `after` after the run. */
static void run_between(struct runtime *ur, ur_exp_executable_graph_handle_t graph,
                        ur_event_handle_t before, ur_event_handle_t after) {
  UR(urEnqueueGraphExp(ur->queue, graph, before != NULL, before ? &before : NULL, NULL));
  UR(urEnqueueEventsWaitWithBarrierExt(ur->queue, NULL, 0, NULL, &after));
}

/* Barriers that wait for an event and that signal one. */
static void await_event(ur_queue_handle_t queue, ur_event_handle_t event) {
  UR(urEnqueueEventsWaitWithBarrierExt(queue, NULL, 1, &event, NULL));
}

static void signal_event(ur_queue_handle_t queue, ur_event_handle_t event) {
  ur_event_handle_t place = event;
  UR(urEnqueueEventsWaitWithBarrierExt(queue, NULL, 0, NULL, &place));
  EXPECT(place == event);
}

/* Runs in the second process: swaps the first two of three blocks, through memory of its own. Two
   graphs do the same. The events are before and after the runs of the first graph, and inside those
   of the second. The second graph also runs many times without a word from the first process. */
static int second(void) {
  struct runtime ur = start_runtime();
  char *memory = (char *)open_memory(&ur, hear_bytes(PARENT));
  ur_event_handle_t rotated = open_event(&ur, hear_bytes(PARENT));
  ur_event_handle_t swapped = open_event(&ur, hear_bytes(PARENT));
  char *spare = (char *)allocate(&ur, BLOCK);
  ur_queue_handle_t loose = create_queue(&ur, false);
  ur_event_handle_t saved = NULL, moved = NULL;
  UR(urQueueBeginGraphCaptureExp(loose));
  enqueue_copy(loose, spare, memory, BLOCK, NULL, &saved);
  enqueue_copy(loose, memory, memory + BLOCK, BLOCK, saved, &moved);
  enqueue_copy(loose, memory + BLOCK, spare, BLOCK, moved, NULL);
  ur_exp_executable_graph_handle_t swap = end_and_instantiate(loose);
  UR(urEventRelease(saved));
  UR(urEventRelease(moved));
  UR(urQueueBeginGraphCaptureExp(loose));
  await_event(loose, rotated);
  run(loose, swap);
  signal_event(loose, swapped);
  ur_exp_executable_graph_handle_t inside = end_and_instantiate(loose);
  char token;
  while (hear_or_end(PARENT, &token, 1)) {
    int runs = token == 'w' ? REPLAYS : 1;
    if (token == 'r')
      run_between(&ur, swap, rotated, swapped);
    else
      while (runs-- > 0)
        run(ur.queue, inside);
    say(PARENT, &token, 1);
  }
  UR(urQueueFinish(ur.queue));
  UR(urGraphExecutableGraphDestroyExp(swap));
  UR(urGraphExecutableGraphDestroyExp(inside));
  UR(urQueueRelease(loose));
  UR(urUSMFree(ur.context, spare));
  UR(urEventRelease(rotated));
  UR(urEventRelease(swapped));
  UR(urIPCCloseMemHandleExp(ur.context, memory));
  stop_runtime(&ur);
  return 0;
}

static void compute_in_turns(struct runtime *ur) {
  char *memory = (char *)allocate(ur, 3 * BLOCK), *spare = (char *)allocate(ur, BLOCK);
  ur_event_handle_t rotated = shared_event(ur), swapped = shared_event(ur);
  uint32_t order[3] = {1, 2, 3};
  for (int i = 0; i < 3; i++)
    write_pattern(ur, memory + i * BLOCK, BLOCK, order[i]);
  UR(urQueueBeginGraphCaptureExp(ur->queue));
  enqueue_copy(ur->queue, spare, memory, BLOCK, NULL, NULL);
  enqueue_copy(ur->queue, memory, memory + BLOCK, BLOCK, NULL, NULL);
  enqueue_copy(ur->queue, memory + BLOCK, memory + 2 * BLOCK, BLOCK, NULL, NULL);
  enqueue_copy(ur->queue, memory + 2 * BLOCK, spare, BLOCK, NULL, NULL);
  ur_exp_executable_graph_handle_t rotate = end_and_instantiate(ur->queue);
  for (int i = 0; i < 3; i++)
    EXPECT(has_pattern(ur, memory + i * BLOCK, BLOCK, order[i], 0));
  struct peer peer = start_peer("second");
  say_bytes(peer.link, share_memory(ur, memory));
  say_bytes(peer.link, share_event(ur, rotated));
  say_bytes(peer.link, share_event(ur, swapped));
  UR(urQueueBeginGraphCaptureExp(ur->queue));
  await_event(ur->queue, swapped);
  run(ur->queue, rotate);
  signal_event(ur->queue, rotated);
  ur_exp_executable_graph_handle_t inside = end_and_instantiate(ur->queue);
  /* Runs with events inside and runs with events around them alternate. Between them are waves, in
     which both processes submit all runs at once. */
  for (int round = 0; round < ROUNDS; round++) {
    char token = round % (ROUNDS / WAVES) == 4 ? 'w' : round % 3 == 0 ? 'r' : 'i';
    if (token == 'w')
      say(peer.link, &token, 1);
    for (int run_index = 0; run_index < (token == 'w' ? REPLAYS : 1); run_index++) {
      if (token == 'r')
        run_between(ur, rotate, round == 0 ? NULL : swapped, rotated);
      else
        run(ur->queue, inside);
    }
    if (token != 'w')
      say(peer.link, &token, 1);
    hear(peer.link, &token, 1);
    uint32_t first = order[0];
    order[0] = order[2], order[2] = first;
    /* The blocks were rotated to (2, 3, 1) and then swapped to (3, 2, 1), an odd number of times. */
  }
  UR(urEventWait(1, &swapped));
  for (int i = 0; i < 3; i++)
    EXPECT(has_pattern(ur, memory + i * BLOCK, BLOCK, order[i], 0));
  end_peer(&peer);
  UR(urGraphExecutableGraphDestroyExp(rotate));
  UR(urGraphExecutableGraphDestroyExp(inside));
  UR(urEventRelease(rotated));
  UR(urEventRelease(swapped));
  UR(urUSMFree(ur->context, spare));
  UR(urUSMFree(ur->context, memory));
}

/* Forks to two other queues and joins them. One block is written first. Then two blocks are doubled
   in parallel, and finally both are gathered. */
static void fork_and_join(struct runtime *ur, bool in_order) {
  char *memory = (char *)allocate(ur, 4 * BLOCK);
  uint32_t *found = (uint32_t *)malloc(2 * BLOCK);
  ur_queue_handle_t origin = create_queue(ur, in_order);
  ur_queue_handle_t branches[2] = {create_queue(ur, true), create_queue(ur, false)};
  ur_event_handle_t written = NULL, copied[2] = {NULL, NULL}, joined = NULL;
  UR(urQueueBeginGraphCaptureExp(origin));
  fill(origin, memory, 7, BLOCK);
  /* The barrier follows the fill on in-order and out-of-order queues. */
  UR(urEnqueueEventsWaitWithBarrier(origin, 0, NULL, &written));
  for (int i = 0; i < 2; i++) {
    EXPECT(!captures(branches[i]));
    enqueue_copy(branches[i], memory + (1 + i) * BLOCK, memory, BLOCK, written, &copied[i]);
    EXPECT(captures(branches[i]));
    ur_exp_graph_handle_t here = NULL, there = NULL;
    UR(urQueueGetGraphExp(origin, &here));
    UR(urQueueGetGraphExp(branches[i], &there));
    EXPECT(here == there && here != NULL);
    /* The barrier waits for no new event. It is still recorded after the commands that its queue or
       its event requires. */
    UR(urEventRelease(copied[i]));
    UR(urEnqueueEventsWaitWithBarrier(branches[i], 0, NULL, &copied[i]));
    uint32_t mark = 100 + (uint32_t)i;
    UR(urEnqueueUSMFill(branches[i], memory + (1 + i) * BLOCK, sizeof mark, &mark, BLOCK / 2, 0, NULL,
                        NULL));
    UR(urEventRelease(copied[i]));
    UR(urEnqueueEventsWait(branches[i], 0, NULL, &copied[i]));
  }
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION,
          urQueueEndGraphCaptureExp(branches[0], &(ur_exp_graph_handle_t){NULL}));
  UR(urEnqueueEventsWaitWithBarrier(origin, 2, copied, &joined));
  enqueue_copy(origin, found, memory + BLOCK, 2 * BLOCK, NULL, NULL);
  ur_exp_executable_graph_handle_t graph = end_and_instantiate(origin);
  EXPECT(!captures(branches[0]) && !captures(branches[1]));
  for (int round = 0; round < 3; round++) {
    memset(found, 0, 2 * BLOCK);
    run(branches[round % 2], graph);
    UR(urQueueFinish(branches[round % 2]));
    for (size_t i = 0; i < 2 * COUNT; i++) {
      size_t branch = i / COUNT;
      EXPECT(found[i] == (i % COUNT < COUNT / 2 ? 100 + branch : 7));
    }
  }
  /* The events represent graph nodes, so they are invalid outside the capture. */
  ur_command_t kind;
  UR(urEventGetInfo(joined, UR_EVENT_INFO_COMMAND_TYPE, sizeof kind, &kind, NULL));
  EXPECT(kind == UR_COMMAND_EVENTS_WAIT_WITH_BARRIER);
  ANSWERS(UR_RESULT_ERROR_GRAPH_INTERNAL_EVENT, urEventWait(1, &joined));
  ANSWERS(UR_RESULT_ERROR_GRAPH_INTERNAL_EVENT, urEnqueueEventsWait(origin, 1, &joined, NULL));
  EXPECT(!captures(origin));
  UR(urGraphExecutableGraphDestroyExp(graph));
  UR(urEventRelease(written));
  UR(urEventRelease(joined));
  for (int i = 0; i < 2; i++) {
    UR(urEventRelease(copied[i]));
    UR(urQueueRelease(branches[i]));
  }
  UR(urQueueRelease(origin));
  UR(urUSMFree(ur->context, memory));
  free(found);
}

/* A barrier that waits only for one event does not follow the commands before it. A later wait for
   all submissions must still include these commands. */
static void wait_for_all_after_a_barrier(struct runtime *ur) {
  char *memory = (char *)allocate(ur, 2 * BLOCK);
  ur_queue_handle_t origin = create_queue(ur, true), branch = create_queue(ur, false);
  ur_event_handle_t filled = NULL, all = NULL;
  UR(urQueueBeginGraphCaptureExp(origin));
  fill(origin, memory, 8, BLOCK);
  UR(urEnqueueEventsWait(origin, 0, NULL, &filled));
  enqueue_copy(branch, memory + BLOCK, memory, BLOCK, filled, NULL);
  UR(urEnqueueEventsWaitWithBarrier(branch, 1, &filled, NULL));
  UR(urEnqueueEventsWait(branch, 0, NULL, &all));
  UR(urEnqueueEventsWait(origin, 1, &all, NULL));
  ur_exp_executable_graph_handle_t graph = end_and_instantiate(origin);
  run(origin, graph);
  UR(urQueueFinish(origin));
  EXPECT(holds(ur, memory, 2 * COUNT, 8));
  UR(urGraphExecutableGraphDestroyExp(graph));
  UR(urEventRelease(filled));
  UR(urEventRelease(all));
  UR(urQueueRelease(branch));
  UR(urQueueRelease(origin));
  UR(urUSMFree(ur->context, memory));
}

static void read_gate(void *of) {
  char byte;
  if (read(*(int *)of, &byte, 1) != 1)
    fail("the gate was not opened");
}

/* Blocks a queue until a byte is written to the gate. Returns the event of the blocking command. */
static ur_event_handle_t close_gate(ur_queue_handle_t queue, int *gate) {
  ur_event_handle_t event = NULL;
  UR(urEnqueueHostTaskExp(queue, (ur_exp_host_task_function_t)read_gate, gate, NULL, 0, NULL, &event));
  return event;
}

static void open_gate(int gate) {
  if (write(gate, "o", 1) != 1)
    fail("the gate cannot be opened");
}

static bool is_complete(ur_event_handle_t event) {
  ur_event_status_t status;
  UR(urEventGetInfo(event, UR_EVENT_INFO_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
  return status == UR_EVENT_STATUS_COMPLETE;
}

/* Checks that each run waits for an event from outside the capture if a captured command waited for
   it. */
static void wait_for_outside(struct runtime *ur) {
  int gate[2];
  EXPECT(pipe(gate) == 0);
  char *memory = (char *)allocate(ur, BLOCK);
  ur_queue_handle_t other = create_queue(ur, true);
  fill(ur->queue, memory, 1, BLOCK);
  UR(urQueueFinish(ur->queue));
  ur_event_handle_t outside = close_gate(other, &gate[0]), done = NULL;
  UR(urQueueBeginGraphCaptureExp(ur->queue));
  UR(urEnqueueEventsWaitWithBarrier(ur->queue, 1, &outside, NULL));
  fill(ur->queue, memory, 2, BLOCK);
  ur_exp_executable_graph_handle_t graph = end_and_instantiate(ur->queue);
  UR(urEnqueueGraphExp(ur->queue, graph, 0, NULL, &done));
  EXPECT(!is_complete(done));
  open_gate(gate[1]);
  UR(urEventWait(1, &done));
  EXPECT(holds(ur, memory, COUNT, 2));
  /* The event was signalled, so the runs continue. */
  fill(ur->queue, memory, 3, BLOCK);
  run(ur->queue, graph);
  EXPECT(holds(ur, memory, COUNT, 2));
  UR(urGraphExecutableGraphDestroyExp(graph));
  UR(urEventRelease(outside));
  UR(urEventRelease(done));
  UR(urQueueFinish(other));
  UR(urQueueRelease(other));
  UR(urUSMFree(ur->context, memory));
  close(gate[0]);
  close(gate[1]);
}

struct count {
  int calls;
  ur_event_handle_t before;
};

static void count_task(void *of) {
  struct count *count = (struct count *)of;
  EXPECT(count->before == NULL || is_complete(count->before));
  count->calls++;
}

static ur_event_handle_t local_event(struct runtime *ur, bool profiling) {
  ur_exp_event_desc_t description = {UR_STRUCTURE_TYPE_EXP_EVENT_DESC, NULL,
                                     profiling ? UR_EXP_EVENT_FLAG_ENABLE_PROFILING : 0};
  ur_event_handle_t event = NULL;
  UR(urEventCreateExp(ur->context, ur->device, &description, &event));
  return event;
}

/* Reusable events fork to another queue and join it, and are used before the capture and after the
   runs. One event is signalled several times in the capture. Each run signals the events again. A
   host task runs between two commands, once in each run. */
static void fork_and_join_with_reusable_events(struct runtime *ur, bool in_order, bool profiling) {
  enum { RUNS = 3 };
  int gate[2];
  EXPECT(pipe(gate) == 0);
  char *memory = (char *)allocate(ur, 4 * BLOCK);
  ur_queue_handle_t origin = create_queue(ur, in_order), branch = create_queue(ur, in_order);
  ur_event_handle_t fork = local_event(ur, profiling), join = local_event(ur, profiling);
  ur_event_handle_t begun = local_event(ur, profiling);
  struct count count = {0, begun};
  /* Before the capture: the fill of the branch follows that of the origin. */
  fill(origin, memory, 1, BLOCK);
  signal_event(origin, fork);
  await_event(branch, fork);
  EXPECT(!captures(branch));
  enqueue_copy(branch, memory + BLOCK, memory, BLOCK, NULL, NULL);
  UR(urQueueFinish(branch));
  EXPECT(holds(ur, memory, 2 * COUNT, 1));

  UR(urQueueBeginGraphCaptureExp(origin));
  fill(origin, memory, 2, BLOCK);
  signal_event(origin, begun);
  signal_event(origin, fork);
  ANSWERS(UR_RESULT_ERROR_GRAPH_INTERNAL_EVENT, urEventWait(1, &fork));
  await_event(branch, fork);
  EXPECT(captures(branch));
  enqueue_copy(branch, memory + BLOCK, memory, BLOCK, NULL, NULL);
  UR(urEnqueueHostTaskExp(branch, (ur_exp_host_task_function_t)count_task, &count, NULL, 0, NULL,
                          NULL));
  if (!in_order)
    UR(urEnqueueEventsWaitWithBarrier(branch, 0, NULL, NULL));
  enqueue_copy(branch, memory + 2 * BLOCK, memory + BLOCK, BLOCK, NULL, NULL);
  signal_event(branch, join);
  await_event(origin, join);
  enqueue_copy(origin, memory + 3 * BLOCK, memory + 2 * BLOCK, BLOCK, NULL, NULL);
  /* The same event again. The branch must be joined again too. */
  signal_event(origin, fork);
  await_event(branch, fork);
  fill(branch, memory, 3, BLOCK);
  signal_event(branch, join);
  await_event(origin, join);
  ur_exp_executable_graph_handle_t graph = end_and_instantiate(origin);
  EXPECT(!captures(branch) && count.calls == 0);
  UR(urEventWait(1, &fork));

  for (int round = 0; round < RUNS; round++) {
    fill(ur->queue, memory, 9, 4 * BLOCK);
    ur_event_handle_t closed = close_gate(ur->queue, &gate[0]);
    run(ur->queue, graph);
    EXPECT(!is_complete(fork) && !is_complete(join));
    open_gate(gate[1]);
    UR(urEventWait(1, &join));
    EXPECT(is_complete(fork));
    UR(urQueueFinish(ur->queue));
    EXPECT(count.calls == round + 1);
    EXPECT(holds(ur, memory, COUNT, 3) && holds(ur, memory + BLOCK, 3 * COUNT, 2));
    UR(urEventRelease(closed));
    /* The event is signalled and awaited without a graph, between the runs. */
    fill(origin, memory, 4, BLOCK);
    signal_event(origin, fork);
    await_event(branch, fork);
    EXPECT(!captures(branch));
    enqueue_copy(branch, memory + BLOCK, memory, BLOCK, NULL, NULL);
    UR(urQueueFinish(branch));
    EXPECT(holds(ur, memory, 2 * COUNT, 4));
  }
  UR(urGraphExecutableGraphDestroyExp(graph));
  UR(urEventRelease(begun));
  UR(urEventRelease(fork));
  UR(urEventRelease(join));
  UR(urQueueRelease(branch));
  UR(urQueueRelease(origin));
  UR(urUSMFree(ur->context, memory));
  close(gate[0]);
  close(gate[1]);
}

/* A graph cannot signal a shared event and also wait for its next signal, not even through another
   opening of the event: its own signals would count. */
static void refuse_both_directions(struct runtime *ur) {
  ur_queue_handle_t queue = create_queue(ur, true);
  ur_event_handle_t event = shared_event(ur), place = NULL;
  for (int round = 0; round < 2; round++) {
    ur_exp_graph_handle_t graph = NULL;
    UR(urQueueBeginGraphCaptureExp(queue));
    /* The second round waits for one handle of the event, and signals another. */
    ur_event_handle_t awaited = round == 0 ? event : open_event(ur, share_event(ur, event));
    await_event(queue, awaited);
    place = event;
    ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_UNSUPPORTED,
            urEnqueueEventsWaitWithBarrierExt(queue, NULL, 0, NULL, &place));
    if (round != 0)
      UR(urEventRelease(awaited));
    ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED, urQueueEndGraphCaptureExp(queue, &graph));
  }
  /* A wait that follows the graph's own signal is a wait for that node. */
  UR(urQueueBeginGraphCaptureExp(queue));
  signal_event(queue, event);
  await_event(queue, event);
  ur_exp_executable_graph_handle_t graph = end_and_instantiate(queue);
  run(queue, graph);
  run(queue, graph);
  UR(urQueueFinish(queue));
  UR(urGraphExecutableGraphDestroyExp(graph));
  UR(urEventRelease(event));
  UR(urQueueRelease(queue));
}

/* A fork by a reusable event must be joined. The graph of another capture cannot wait for it. */
static void refuse_wrong_reusable_events(struct runtime *ur) {
  ur_queue_handle_t queue = create_queue(ur, true), other = create_queue(ur, true);
  ur_event_handle_t event = local_event(ur, false);
  ur_exp_graph_handle_t graph = NULL;
  UR(urQueueBeginGraphCaptureExp(queue));
  signal_event(queue, event);
  UR(urQueueBeginGraphCaptureExp(other));
  ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_MERGE_ATTEMPT, urEnqueueEventsWait(other, 1, &event, NULL));
  ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED, urQueueEndGraphCaptureExp(other, &graph));
  await_event(other, event);
  ANSWERS(UR_RESULT_ERROR_GRAPH_UNJOINED_FORKS, urQueueEndGraphCaptureExp(queue, &graph));
  EXPECT(!captures(queue) && !captures(other));
  /* The capture is over, so the event has no signal. */
  UR(urEventWait(1, &event));
  await_event(other, event);
  EXPECT(!captures(other));
  UR(urQueueFinish(other));
  UR(urEventRelease(event));
  UR(urQueueRelease(other));
  UR(urQueueRelease(queue));
}

/* Records an executable graph and a command buffer into another graph. Their current state is
   recorded. */
static void record_graphs_in_graphs(struct runtime *ur) {
  char *memory = (char *)allocate(ur, 4 * BLOCK);
  UR(urQueueBeginGraphCaptureExp(ur->queue));
  fill(ur->queue, memory, 5, BLOCK);
  enqueue_copy(ur->queue, memory + BLOCK, memory, BLOCK, NULL, NULL);
  ur_exp_executable_graph_handle_t inner = end_and_instantiate(ur->queue);
  ur_exp_command_buffer_desc_t description = {UR_STRUCTURE_TYPE_EXP_COMMAND_BUFFER_DESC, NULL, false,
                                              true, false};
  ur_exp_command_buffer_handle_t buffer = NULL;
  UR(urCommandBufferCreateExp(ur->context, ur->device, &description, &buffer));
  UR(urCommandBufferAppendUSMMemcpyExp(buffer, memory + 2 * BLOCK, memory + BLOCK, BLOCK, 0, NULL, 0,
                                       NULL, NULL, NULL, NULL));
  UR(urCommandBufferFinalizeExp(buffer));
  ur_queue_handle_t loose = create_queue(ur, false);
  ur_event_handle_t ran = NULL;
  UR(urQueueBeginGraphCaptureExp(loose));
  UR(urEnqueueGraphExp(loose, inner, 0, NULL, &ran));
  UR(urEnqueueCommandBufferExp(loose, buffer, 1, &ran, NULL));
  UR(urEnqueueEventsWaitWithBarrier(loose, 0, NULL, NULL));
  enqueue_copy(loose, memory + 3 * BLOCK, memory + 2 * BLOCK, BLOCK, NULL, NULL);
  ur_exp_executable_graph_handle_t outer = end_and_instantiate(loose);
  UR(urGraphExecutableGraphDestroyExp(inner));
  UR(urCommandBufferReleaseExp(buffer));
  UR(urEventRelease(ran));
  for (int round = 0; round < 3; round++) {
    fill(ur->queue, memory, 0, 4 * BLOCK);
    run(ur->queue, outer);
    EXPECT(holds(ur, memory, 4 * COUNT, 5));
  }
  UR(urGraphExecutableGraphDestroyExp(outer));
  UR(urQueueRelease(loose));
  UR(urUSMFree(ur->context, memory));
}

/* Records kernel launches. The graph keeps the arguments of the launches. */
static void record_launches(struct runtime *ur) {
  struct kernels kernels = load(ur);
  void *memory = allocate(ur, BLOCK);
  fill(ur->queue, memory, 0, BLOCK);
  UR(urQueueFinish(ur->queue));
  UR(urQueueBeginGraphCaptureExp(ur->queue));
  UR(launch(ur, kernels.fill, memory, 5, COUNT, NULL, 0, NULL, NULL));
  UR(launch(ur, kernels.scale, memory, 2, COUNT, NULL, 0, NULL, NULL));
  ur_exp_executable_graph_handle_t graph = end_and_instantiate(ur->queue);
  EXPECT(holds(ur, memory, COUNT, 0));
  unload(&kernels);
  for (int round = 0; round < 2; round++) {
    fill(ur->queue, memory, 0, BLOCK);
    run(ur->queue, graph);
    /* The expected value is 3 * 5 + 2. */
    EXPECT(holds(ur, memory, COUNT, 17));
  }
  UR(urGraphExecutableGraphDestroyExp(graph));
  UR(urUSMFree(ur->context, memory));
}

static void count_call(void *of) { ++*(int *)of; }

/* A callback that sets another callback. Both callbacks must be called. */
static struct {
  ur_exp_graph_handle_t graph;
  int calls;
} chain;

static void set_another(void *of) {
  (void)of;
  UR(urGraphSetDestructionCallbackExp(chain.graph, count_call, &chain.calls));
}

static void set_callbacks_in_callbacks(struct runtime *ur) {
  UR(urGraphCreateExp(ur->context, &chain.graph));
  UR(urGraphSetDestructionCallbackExp(chain.graph, set_another, NULL));
  UR(urGraphDestroyExp(chain.graph));
  EXPECT(chain.calls == 1);
}

static bool is_empty(ur_exp_graph_handle_t graph) {
  bool empty = false;
  UR(urGraphIsEmptyExp(graph, &empty));
  return empty;
}

/* Checks the properties of graphs that the program creates. */
static void describe(struct runtime *ur) {
  char *memory = (char *)allocate(ur, BLOCK);
  ur_exp_graph_handle_t graph = NULL, same = NULL;
  ur_exp_executable_graph_handle_t executable = NULL;
  int calls = 0;
  uint64_t first = 0, second = 0;
  UR(urGraphCreateExp(ur->context, &graph));
  UR(urGraphGetIdExp(graph, &first));
  EXPECT(is_empty(graph));
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT, urGraphInstantiateGraphExp(graph, &executable));
  UR(urQueueBeginCaptureIntoGraphExp(ur->queue, graph));
  ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION, urQueueBeginGraphCaptureExp(ur->queue));
  ur_queue_handle_t other = create_queue(ur, true);
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT, urQueueBeginCaptureIntoGraphExp(other, graph));
  EXPECT(!captures(other));
  UR(urQueueRelease(other));
  fill(ur->queue, memory, 3, BLOCK);
  EXPECT(!is_empty(graph));
  ANSWERS(UR_RESULT_ERROR_INVALID_GRAPH, urGraphInstantiateGraphExp(graph, &executable));
  fill(ur->queue, memory, 4, BLOCK / 2);
  UR(urQueueEndGraphCaptureExp(ur->queue, &same));
  EXPECT(same == graph);
  ANSWERS(UR_RESULT_ERROR_INVALID_ARGUMENT, urQueueBeginCaptureIntoGraphExp(ur->queue, graph));
  char path[] = "/tmp/crosshandle-graph-XXXXXX", text[4096];
  int file = mkstemp(path);
  EXPECT(file >= 0);
  UR(urGraphDumpContentsExp(graph, path));
  ssize_t length = read(file, text, sizeof text - 1);
  EXPECT(length > 0);
  text[length] = '\0';
  EXPECT(strstr(text, "digraph") != NULL && strstr(text, "fill") != NULL);
  EXPECT(strstr(text, "n0 -> n1") != NULL);
  close(file);
  unlink(path);
  ANSWERS(UR_RESULT_ERROR_UNKNOWN, urGraphDumpContentsExp(graph, "/no/such/folder/graph.dot"));
  ur_native_handle_t native = 0;
  ANSWERS(UR_RESULT_ERROR_UNSUPPORTED_FEATURE, urGraphGetNativeHandleExp(graph, &native));
  UR(urGraphSetDestructionCallbackExp(graph, count_call, &calls));
  UR(urGraphSetDestructionCallbackExp(graph, count_call, &calls));
  UR(urGraphInstantiateGraphExp(graph, &executable));
  EXPECT(calls == 0);
  UR(urGraphDestroyExp(graph));
  EXPECT(calls == 2);
  run(ur->queue, executable);
  EXPECT(holds(ur, memory + BLOCK / 2, COUNT / 2, 3) && holds(ur, memory, COUNT / 2, 4));
  UR(urGraphExecutableGraphDestroyExp(executable));
  UR(urGraphCreateExp(ur->context, &graph));
  UR(urGraphGetIdExp(graph, &second));
  EXPECT(second > first);
  UR(urGraphDestroyExp(graph));
  UR(urUSMFree(ur->context, memory));
}

/* Checks that a graph and its runs keep the objects alive that they use, even after the program has
   released the objects. */
static void keep_what_is_used(struct runtime *ur) {
  int gate[2];
  EXPECT(pipe(gate) == 0);
  char *memory = (char *)allocate(ur, 2 * BLOCK), *spare = (char *)allocate(ur, BLOCK);
  /* Whole pages, so that a GPU can access the memory directly. */
  uint32_t *user = (uint32_t *)aligned_alloc(4096, BLOCK);
  memset(user, 0, BLOCK);
  ur_buffer_properties_t properties = {UR_STRUCTURE_TYPE_BUFFER_PROPERTIES, NULL, user};
  ur_mem_handle_t buffer = NULL;
  UR(urMemBufferCreate(ur->context, UR_MEM_FLAG_READ_WRITE | UR_MEM_FLAG_USE_HOST_POINTER, BLOCK,
                       &properties, &buffer));
  uint32_t value = 9;
  ur_queue_handle_t queue = create_queue(ur, true);
  UR(urQueueBeginGraphCaptureExp(queue));
  fill(queue, spare, 6, BLOCK);
  enqueue_copy(queue, memory, spare, BLOCK, NULL, NULL);
  UR(urEnqueueMemBufferFill(queue, buffer, &value, sizeof value, 0, BLOCK, 0, NULL, NULL));
  ur_exp_executable_graph_handle_t graph = end_and_instantiate(queue);
  /* Freeing memory does not wait for graphs that use the memory. */
  UR(urUSMFree(ur->context, spare));
  UR(urMemRelease(buffer));
  UR(urQueueRelease(queue));
  ur_event_handle_t closed = close_gate(ur->queue, &gate[0]), done = NULL;
  UR(urEnqueueGraphExp(ur->queue, graph, 0, NULL, &done));
  UR(urGraphExecutableGraphDestroyExp(graph));
  EXPECT(!is_complete(done));
  open_gate(gate[1]);
  UR(urEventWait(1, &done));
  EXPECT(holds(ur, memory, COUNT, 6));
  UR(urEventRelease(closed));
  UR(urEventRelease(done));
  UR(urQueueFinish(ur->queue));
  for (int tries = 0; user[COUNT - 1] != 9 && tries < 20000; tries++)
    usleep(1000);
  for (int i = 0; i < COUNT; i++)
    EXPECT(user[i] == 9);
  /* A capture that the program never ends is ended when its queue is released. The other queues
     then leave it. */
  ur_queue_handle_t other = create_queue(ur, true);
  queue = create_queue(ur, true);
  ur_exp_graph_handle_t never = NULL;
  UR(urGraphCreateExp(ur->context, &never));
  UR(urQueueBeginCaptureIntoGraphExp(queue, never));
  ur_event_handle_t fork = NULL;
  UR(urEnqueueEventsWait(queue, 0, NULL, &fork));
  UR(urEnqueueEventsWait(other, 1, &fork, NULL));
  EXPECT(captures(other));
  UR(urEventRelease(fork));
  UR(urQueueRelease(queue));
  EXPECT(!captures(other));
  ur_exp_executable_graph_handle_t none = NULL;
  ANSWERS(UR_RESULT_ERROR_INVALID_GRAPH, urGraphInstantiateGraphExp(never, &none));
  UR(urGraphDestroyExp(never));
  /* Destroying a graph does not end its capture. Only the queue ends the capture. */
  UR(urGraphCreateExp(ur->context, &never));
  UR(urQueueBeginCaptureIntoGraphExp(other, never));
  UR(urGraphDestroyExp(never));
  ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED, urQueueEndGraphCaptureExp(other, &never));
  EXPECT(never == NULL && !captures(other));
  UR(urQueueFinish(other));
  UR(urQueueRelease(other));
  UR(urUSMFree(ur->context, memory));
  free(user);
  close(gate[0]);
  close(gate[1]);
}

static void never_native(ur_queue_handle_t queue, void *of) {
  (void)queue, (void)of, fail("a native command ran that was to be recorded");
}

/* Checks that an operation that graphs do not support invalidates the capture, and is not
   executed. */
static void refuse_what_is_not_recorded(struct runtime *ur) {
  enum { CALLS = 7 };
  char *memory = (char *)allocate(ur, BLOCK), bytes[16];
  ur_mem_handle_t buffer = NULL;
  ur_event_handle_t event = NULL;
  UR(urMemBufferCreate(ur->context, UR_MEM_FLAG_READ_WRITE, BLOCK, NULL, &buffer));
  fill(ur->queue, memory, 1, BLOCK);
  UR(urQueueFinish(ur->queue));
  ur_queue_handle_t queue = create_queue(ur, true);
  for (int call = 0; call < CALLS; call++) {
    UR(urQueueBeginGraphCaptureExp(queue));
    fill(queue, memory, 2, BLOCK);
    /* An invalid argument does not invalidate the capture. */
    ANSWERS(UR_RESULT_ERROR_INVALID_SIZE,
            urEnqueueUSMMemcpy(queue, false, memory, memory, 2 * BLOCK, 0, NULL, NULL));
    void *made = NULL;
    ur_result_t result = UR_RESULT_SUCCESS;
    switch (call) {
    case 0:
      result = urEnqueueUSMMemcpy(queue, true, bytes, memory, sizeof bytes, 0, NULL, NULL);
      break;
    case 1:
      result = urQueueFinish(queue);
      break;
    case 2:
      result = urEnqueueNativeCommandExp(queue, never_native, NULL, 0, NULL, NULL, 0, NULL, NULL);
      break;
    case 3:
      result = urEnqueueUSMDeviceAllocExp(queue, NULL, BLOCK, NULL, 0, NULL, &made, NULL);
      break;
    case 4:
      result = urEnqueueMemBufferMap(queue, buffer, false, UR_MAP_FLAG_READ, 0, BLOCK, 0, NULL, NULL,
                                     &made);
      break;
    case 5:
      result = urEnqueueTimestampRecordingExp(queue, false, 0, NULL, &event);
      break;
    case 6:
      result = urEnqueueUSMFreeExp(queue, NULL, memory, 0, NULL, NULL);
      break;
    }
    doing = "a command that no graph records";
    check(UR_RESULT_ERROR_GRAPH_CAPTURE_UNSUPPORTED, result, doing);
    ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED,
            urEnqueueUSMMemcpy(queue, false, bytes, memory, sizeof bytes, 0, NULL, NULL));
    EXPECT(captures(queue));
    ur_exp_graph_handle_t graph = (ur_exp_graph_handle_t)bytes;
    ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED, urQueueEndGraphCaptureExp(queue, &graph));
    EXPECT(graph == NULL && made == NULL && event == NULL && !captures(queue));
    ANSWERS(UR_RESULT_ERROR_COMMAND_LIST_NOT_CAPTURING, urQueueEndGraphCaptureExp(queue, &graph));
    ANSWERS(UR_RESULT_ERROR_INVALID_OPERATION, urQueueGetGraphExp(queue, &graph));
    UR(urQueueFinish(queue));
    EXPECT(holds(ur, memory, COUNT, 1));
  }
  /* A fork that no command of the origin joins. */
  ur_queue_handle_t other = create_queue(ur, false);
  ur_exp_graph_handle_t graph = NULL;
  int calls = 0;
  UR(urQueueBeginGraphCaptureExp(queue));
  UR(urQueueGetGraphExp(queue, &graph));
  UR(urGraphSetDestructionCallbackExp(graph, count_call, &calls));
  UR(urEnqueueEventsWaitWithBarrier(queue, 0, NULL, &event));
  enqueue_copy(other, memory, memory + BLOCK / 2, BLOCK / 2, event, NULL);
  ANSWERS(UR_RESULT_ERROR_GRAPH_UNJOINED_FORKS, urQueueEndGraphCaptureExp(queue, &graph));
  EXPECT(calls == 1);
  EXPECT(graph == NULL && !captures(queue) && !captures(other));
  UR(urEventRelease(event));
  /* Two captures cannot be merged. */
  event = NULL;
  UR(urQueueBeginGraphCaptureExp(queue));
  UR(urQueueBeginGraphCaptureExp(other));
  UR(urEnqueueEventsWaitWithBarrier(other, 0, NULL, &event));
  ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_MERGE_ATTEMPT, urEnqueueEventsWait(queue, 1, &event, NULL));
  ANSWERS(UR_RESULT_ERROR_GRAPH_CAPTURE_INVALIDATED, urQueueEndGraphCaptureExp(queue, &graph));
  UR(urGraphDestroyExp(end(other)));
  UR(urEventRelease(event));
  UR(urQueueRelease(other));
  UR(urQueueRelease(queue));
  UR(urMemRelease(buffer));
  UR(urUSMFree(ur->context, memory));
}

int main(int count, char **words) {
  limit_life();
  if (count == 2 && strcmp(words[1], "second") == 0)
    return second();
  struct runtime ur = start_runtime();
  EXPECT(supports(&ur, UR_DEVICE_INFO_GRAPH_RECORD_AND_REPLAY_SUPPORT_EXP));
  compute_in_turns(&ur);
  fork_and_join(&ur, true);
  fork_and_join(&ur, false);
  wait_for_all_after_a_barrier(&ur);
  wait_for_outside(&ur);
  for (int kind = 0; kind < 4; kind++)
    fork_and_join_with_reusable_events(&ur, kind & 1, kind & 2);
  refuse_both_directions(&ur);
  refuse_wrong_reusable_events(&ur);
  record_graphs_in_graphs(&ur);
  /* The test sets this variable if the device supports kernels. */
  if (getenv("KERNELS_PTX") != NULL)
    record_launches(&ur);
  describe(&ur);
  set_callbacks_in_callbacks(&ur);
  keep_what_is_used(&ur);
  refuse_what_is_not_recorded(&ur);
  stop_runtime(&ur);
  return 0;
}
