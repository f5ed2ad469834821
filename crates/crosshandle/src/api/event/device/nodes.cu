// The nodes of captured graphs that signal events and wait for them.
//
// Each wait has a word for its failure: the first result that is not success, of this wait and of
// the waits before it in the same branch.
#include "crosshandle.cuh"

// Waits for the next signal. `before` is the word of the latest wait before this one, or null.
extern "C" __global__ void crosshandle_record_wait(
    crosshandle_device_event event, unsigned *fault, const unsigned *before)
{
    unsigned result = crosshandle::wait_next(event, crosshandle::forever);
    *fault = before && *before ? *before : result;
}

// Joins two branches: later nodes fail if either of them has failed.
extern "C" __global__ void crosshandle_record_join(
    unsigned *fault, const unsigned *first, const unsigned *second)
{
    *fault = *first ? *first : *second;
}

// Signals the next number. The signal fails if a wait before it has failed in this run.
extern "C" __global__ void crosshandle_record_signal(
    crosshandle_device_event event, const unsigned *fault)
{
    if (fault && *fault)
        crosshandle::fail(event);
    else
        crosshandle::signal(event);
}
