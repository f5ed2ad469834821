//! A Level Zero driver in software, for tests: the *stock* loader takes it for one.
//!
//! ```text
//! ZE_ENABLE_ALT_DRIVERS=/path/libze_sim.so program
//! ```
//!
//! Memory of devices is memory of the host behind descriptors; commands are executed by threads,
//! in order; events are counters in pages that processes share; kernels are compiled and run by an OpenCL
//! runtime for the CPU, if there is one. So are images and samplers. It is strict where real drivers leave the outcome open, so that a program that
//! passes here has not just been lucky; and it can be told to misbehave, so that it can be seen how
//! a program takes that.
//!
//! # What it shares with Intel's driver
//!
//! - The first four bytes of a handle for another process are the number of a descriptor; in an
//!   event's handle whose descriptor the driver fetches, the four bytes after eight zeros. The
//!   descriptor stays the driver's, one for each allocation or event: it is closed with that, or for
//!   memory with the last handle that is put back. The process that opens the handle puts the number
//!   of its own descriptor of the same file there, or the driver fetches the descriptor
//!   (`TRANSPORT`). The driver closes a number that was put in place for memory of the host at once,
//!   one for memory of a device never, and one of physical memory when that is destroyed.
//! - A driver that fetches has the number of the exporting process in the handle, at byte 16 for
//!   memory, with a zero and the kind of memory behind it, and at byte 48 for events, as Intel's
//!   drivers from 26.14 to 26.31 have it. A number that was put in place for memory still counts,
//!   unless it is the exporter's by chance; for events none must be.
//! - A fresh counter-based event is complete; sharing one works both ways; one with times cannot be
//!   shared; it is signalled from lists in order only, and never by the host.
//! - Handles of one process to the same physical memory go together: the first one that is destroyed
//!   ends all.
//! - An event of a pool that cannot be shared becomes a counter with the first signal of an immediate
//!   list in order: the host can't signal it then, and lists wait for it only while it has been
//!   signalled by a list since it was reset.
//! - It has an older name for everything about them, as long as the loader knows none.
//! - A kernel takes addresses of the driver's memory alone. What a launch is made of (arguments, sizes of
//!   groups, the offset) is that of the time when it is appended.
//! - A bad handle of memory answers `INVALID_ARGUMENT`, a bad one of an event
//!   `OUT_OF_DEVICE_MEMORY`.
//!
//! # Switches
//!
//! Variables of the environment, read at the first call; each begins with `CROSSHANDLE_SIM_`.
//!
//! | variable | meaning | else |
//! |---|---|---|
//! | `DEVICES` | how many there are, up to 16 | 1 |
//! | `API_VERSION` | of the driver: what came later than `1.4`, say, is not there | `1.17` |
//! | `DRIVER_VERSION` | a number; handles of other versions are not understood; physical memory is imported from 0x010395a4 (26.18) on, and before that new memory is given instead; nor does one that fetches descriptors recognise a number that was put in place before that | `0x01039876` |
//! | `IP_VERSION` | of the devices, in hexadecimal | `05004000` |
//! | `MACHINE` | a number in the UUIDs of devices, for machines that share none | 0 |
//! | `MISSING` | what there is not: names of extensions and functions, or `ipc_memory`, `ipc_event_pool`, `external_memory`, `peer_access`, `event_updates` (an opened event knows no signal but the latest when its handle was made; one that was never signalled has no handle), `several_mappings` (of physical memory, at a time), `residency` (mapping physical memory fails when that is done), `pooled_exports` (handles of memory of 2 MiB or less that was not made to be exported), `modules` (programs and their kernels), `images` (and samplers); with commas between | |
//! | `TRANSPORT` | `descriptor`: the process that opens a handle brings a descriptor; `pidfd`: the driver fetches it from the exporter | `descriptor` |
//! | `REFUSE_DESCRIPTORS` | 1: what is opened is refused, whatever its descriptor | 0 |
//! | `REFUSE` | `FUNCTION:CODE`, with commas between: that function does nothing but answer that code (hexadecimal); the exported function `crosshandle_sim_refuse(text)` puts other rules in their place | |
//! | `FAIL_ALLOCATIONS_AFTER` | that many allocations, events and pools succeed, no more | |
//! | `LOST_AFTER` | that many commands are executed, then the device is lost | |
//! | `COMMAND_DELAY_US` | how long each command takes, in microseconds | 0 |
//! | `REUSE` | 1: freed memory is given to the next allocation of that size, also while other processes have it open, as Intel's driver does | 0 |
//! | `MISUSE` | `abort`: a wrong use ends the process; `report`: it answers an error | `report` |
//! | `TOLERATE` | checks that are not to be made, with commas between | |
//! | `LOG` | a file that all processes append a line to for every wrong use | |
//! | `REPORT` | a file for the report, whose name gets a dot and the number of the process | |
//!
//! # Checks
//!
//! Each wrong use is a line on the standard error stream, and in `LOG`:
//! `ze_sim[PID]: MISUSE CHECK: FUNCTION: …`.
//!
//! | check | finds |
//! |---|---|
//! | `wrong-close` | what was opened from a handle is destroyed or freed, or what was created is closed |
//! | `double-close`, `double-free` | something ends twice; an address is freed that is none |
//! | `use-after-destroy`, `wrong-handle` | a handle that is none any more, or never was |
//! | `out-of-order-signal` | a list that is not in order is to signal a counter-based event |
//! | `foreign-descriptor` | a handle's descriptor is not open here, or leads to something else |
//! | `descriptor-closed` | a user has closed a descriptor of the driver |
//! | `garbage-handle`, `foreign-version` | bytes to be opened that this driver has not made |
//! | `destroy-in-use` | something ends while commands, or mappings, use it |
//! | `outlived-context` | a context ends before what lives in it |
//! | `out-of-bounds` | a command reaches beyond an allocation |
//! | `panic` | a defect of this driver |
//!
//! # The report
//!
//! It is written when a context is destroyed and when the process ends by itself; the exported
//! function `crosshandle_sim_report(buffer, size)` copies it at any time. Its lines are
//! `live KIND N of M created`, `misuse CHECK N` and `calls FUNCTION N`: functions that were never
//! called are not in it, so it shows as well which calls a program has *not* made.

// Functions and arguments have the names of Level Zero.
#![allow(non_snake_case)]

mod append;
mod call;
mod checks;
mod context;
mod counter;
mod counter_event;
mod device;
mod device_info;
mod driver;
mod engine;
mod event;
mod event_pool;
mod external;
mod fence;
mod getters;
mod handles;
mod image;
mod ipc;
mod kernel;
mod ledger;
mod list;
mod memory;
mod memory_info;
mod memory_ipc;
mod module;
mod os;
mod physical;
mod queue;
mod refusals;
mod runtime_queue;
mod slot;
mod space;
mod switches;
mod virtual_memory;
mod wait;
mod work;
mod zex;
