//! Constants of count of the reports, and why they have their values.

/// Exporters that are asked at once: each takes a descriptor. Halved: where more are stopped than
/// this, those behind them are not asked in time. Doubled: more than half of the usual 1,024
/// descriptors.
pub(super) const MAX_QUESTIONS: usize = 256;

/// Bytes of the longest report that is read. One of a context with as many objects as are listed has
/// some hundred kilobytes, so halved or doubled makes no difference; without a limit, an exporter
/// could fill the memory of who asks.
pub(super) const MAX_REPORT_BYTES: usize = 64 << 20;
