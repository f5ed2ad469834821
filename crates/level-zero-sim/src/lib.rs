//! A Level Zero driver in software, for tests. The *stock* loader accepts it as a driver.
//!
//! ```text
//! ZE_ENABLE_ALT_DRIVERS=/path/libze_sim.so program
//! ```
//!
//! Device memory is host memory behind descriptors. Threads execute the commands in order. Events
//! are counters in pages that processes share. An OpenCL runtime for the CPU, if one is installed,
//! compiles and runs kernels, and provides images and samplers.
//!
//! The driver has the functions that this project's library and tests call. All others return
//! `ZE_RESULT_ERROR_UNSUPPORTED_FEATURE`. Examples are queues that execute regular lists, fences,
//! shared pools of events, and the times of commands.
//!
//! The driver is strict where real drivers leave the outcome open, so a program that passes its
//! tests here was not merely lucky. The driver can also be told to misbehave, which shows how a
//! program reacts.
//!
//! # What it shares with Intel's driver
//!
//! - The first four bytes of a handle for another process are a descriptor number. If the driver
//!   fetches the descriptors of events, the number in an event's handle comes after eight zero
//!   bytes.
//! - The driver keeps the ownership of that descriptor, and has one for each allocation or event.
//!   It closes the descriptor together with the object.
//! - The opening process puts the number of its own descriptor of the same file into the handle, or
//!   the driver fetches the descriptor (`TRANSPORT`). The driver closes such a replaced number at
//!   once for host memory, never for device memory, and with the object for physical memory.
//! - A driver that fetches descriptors stores the exporting process's number in the handle. For
//!   memory it is at byte 16, with a zero and the kind of memory after it. For events it is at byte
//!   48. Intel's drivers from 26.14 to 26.31 use the same places.
//! - Such a driver still accepts a replaced number for memory, unless that number happens to equal
//!   the exporter's. For events the number must not be replaced.
//! - A fresh counter-based event is complete. Sharing one works in both directions. Only in-order
//!   lists signal it, never the host.
//! - All handles of one process to the same physical memory end together, when the first of them is
//!   destroyed.
//! - A pooled event, unless its pool was created to be shared, becomes a counter when an immediate
//!   in-order list first signals it. From then on the host cannot signal it, and lists may wait for
//!   it only after a list has signalled it since the last reset.
//! - All functions of counter-based events have an older name too, while the loader does not know
//!   the new names.
//! - A kernel accepts only addresses of the driver's memory. A launch uses the arguments, group
//!   sizes and offset that were set when it was appended.
//! - Opening a bad handle returns `INVALID_ARGUMENT` for memory and `OUT_OF_DEVICE_MEMORY` for an
//!   event.
//!
//! # Switches
//!
//! The switches are environment variables that the driver reads at the first call. Each name begins
//! with `CROSSHANDLE_SIM_`. Lists are separated by commas.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `DEVICES` | number of devices, up to 16 | 1 |
//! | `API_VERSION` | version of Level Zero; later functions are missing | `1.17` |
//! | `DRIVER_VERSION` | version of the driver, see below | `0x01039876` |
//! | `MISSING` | a list of what the driver lacks, see below | |
//! | `TRANSPORT` | `descriptor`: the opening process brings a descriptor; `pidfd`: the driver fetches it from the exporter | `descriptor` |
//! | `REFUSE_DESCRIPTORS` | 1: every open is refused, with any descriptor | 0 |
//! | `REFUSE` | a list of `FUNCTION:CODE`, see below | |
//! | `FAIL_ALLOCATIONS_AFTER` | number of allocations, events and pools that succeed | |
//! | `LOST_AFTER` | number of commands that are executed before the device is lost | |
//! | `COMMAND_DELAY_US` | duration of each command, in microseconds | 0 |
//! | `REUSE` | 1: the next allocation of the same size reuses freed memory, see below | 0 |
//! | `MISUSE` | `abort`: a wrong use ends the process; `report`: it returns an error | `report` |
//! | `LOG` | a file to which all processes append a line for every wrong use | |
//! | `REPORT` | a file for the report; a dot and the process number are appended to its name | |
//!
//! `DRIVER_VERSION` has three effects. The driver does not understand handles of other versions.
//! From 0x010395a4 (26.18) on it imports physical memory, and before that it returns new memory
//! instead. Earlier versions that fetch descriptors also do not recognise a replaced number.
//!
//! `MISSING` accepts the names of extensions and functions, and these words:
//!
//! - `ipc_memory`, `external_memory` and `peer_access`.
//! - `event_updates`: an opened event knows only the signal that was the latest when its handle was
//!   made. An event that was never signalled has no handle.
//! - `several_mappings`: physical memory can be mapped only once at a time.
//! - `residency`: mapping physical memory returns an error although the memory is mapped.
//! - `pooled_exports`: memory of 2 MiB or less has no handle unless it was made to be exported.
//! - `modules`: programs and their kernels.
//! - `images`: images and samplers.
//!
//! A function in `REFUSE` only returns the given code (in hexadecimal). The exported function
//! `crosshandle_sim_refuse(text)` replaces these rules.
//!
//! With `REUSE`, memory is reused even while other processes have it open, as in Intel's driver.
//!
//! # Checks
//!
//! For each wrong use, the driver writes a line to the standard error stream and to `LOG`:
//! `ze_sim[PID]: MISUSE CHECK: FUNCTION: …`.
//!
//! | check | finds |
//! |---|---|
//! | `wrong-close` | an opened object is destroyed or freed, or a created object is closed |
//! | `double-close`, `double-free` | an object is ended twice, or an address is freed that is not allocated |
//! | `use-after-destroy`, `wrong-handle` | a handle was destroyed, or never existed |
//! | `out-of-order-signal` | a list that is not in order is asked to signal a counter-based event |
//! | `foreign-descriptor` | a handle's descriptor is not open here, or refers to something else |
//! | `descriptor-closed` | the program has closed a descriptor of the driver |
//! | `garbage-handle`, `foreign-version` | opened bytes were not made by this driver |
//! | `destroy-in-use` | an object ends while commands or mappings use it |
//! | `outlived-context` | a context ends before the objects in it |
//! | `out-of-bounds` | a command accesses bytes beyond an allocation |
//! | `panic` | this driver has a bug |
//!
//! # The report
//!
//! The driver writes the report when a context is destroyed and when the process exits normally.
//! Its lines are `live KIND N of M created`, `misuse CHECK N` and `calls FUNCTION N`. Functions
//! that were never called are missing from it, so it also shows which calls a program has *not*
//! made.

// Functions and arguments have their names from Level Zero.
#![allow(non_snake_case)]

mod append;
mod call;
mod checks;
mod command_queue;
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
mod refusals;
mod runtime_queue;
mod slot;
mod space;
mod switches;
mod virtual_memory;
mod wait;
mod work;
mod zex;
