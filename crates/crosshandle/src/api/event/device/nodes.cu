// The nodes of captured graphs that signal events and wait for them.
#include "crosshandle.cuh"

// Waits for the next signal. `fault` is the first result of this run that is not success, if there
// is one. The first wait of a capture resets it.
extern "C" __global__ void crosshandle_record_wait(
    crosshandle_device_event event, unsigned *fault, unsigned is_first)
{
    unsigned result = crosshandle::wait_next(event, crosshandle::forever);
    if (is_first || (result && !*fault))
        *fault = result;
}

// Signals the next number. The signal fails if a wait of this run has failed.
extern "C" __global__ void crosshandle_record_signal(
    crosshandle_device_event event, const unsigned *fault)
{
    if (fault && *fault)
        crosshandle::fail(event);
    else
        crosshandle::signal(event);
}
