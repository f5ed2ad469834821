//! Limits of the requests for reports.

/// Maximum number of exporters that are asked at once. Each takes a descriptor, and processes may
/// usually have 1,024. If more exporters than this are stopped, those after them are not asked in
/// time.
pub(super) const MAX_QUESTIONS: usize = 256;

/// Maximum length of a report, in bytes. It keeps an exporter from filling the memory of the
/// reader. A report with as many objects as it can list has some hundred kilobytes.
pub(super) const MAX_REPORT_BYTES: usize = 64 << 20;
