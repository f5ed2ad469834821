//! Model checker of the event protocol.
