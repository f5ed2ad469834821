//! Words in memory that streams wait for and write.
//!
//! For all calls, the stream's context must be current (see `Driver::enter`).

use super::{DeviceAddress, Driver, StreamHandle};
use crosshandle_types::error::Result;
use cudarc::driver::sys::{
    CUstreamBatchMemOpParams, CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st,
    CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1,
    CUstreamBatchMemOpType, CUstreamWaitValue_flags, CUstreamWriteValue_flags,
};
use std::ffi::c_uint;

/// Maximum number of word operations in one driver call. Measured: a call with two takes little
/// longer than a call with one.
const WORD_OPS_PER_CALL: usize = 8;

const WAIT: c_uint = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
const WRITE: c_uint = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as c_uint;

/// An operation of a stream on a word of 32 bits.
#[derive(Clone, Copy)]
pub(crate) enum WordOp {
    /// Waits until the word reaches or passes a value, cyclically: `(word - value) as i32 >= 0`.
    Wait(DeviceAddress, u32),
    /// Writes the word when all earlier work is complete and visible to every device and process.
    Write(DeviceAddress, u32),
}

impl Driver {
    /// Makes a stream do these operations in order, in as few calls as possible. A call with two
    /// operations takes little longer than a call with one.
    ///
    /// # Safety
    /// The words are aligned, and stay accessible to the device until the stream has done the
    /// operations.
    #[inline]
    pub(crate) unsafe fn word_ops(&self, stream: StreamHandle, ops: &[WordOp]) -> Result<()> {
        let library = &self.library;
        for ops in ops.chunks(WORD_OPS_PER_CALL) {
            // SAFETY: promised by the caller.
            unsafe {
                match *ops {
                    // A single operation is faster through its own function.
                    [WordOp::Wait(word, value)] => self.check(
                        "cuStreamWaitValue32",
                        (library.stream_wait_value_32)(stream, word, value, WAIT),
                    )?,
                    [WordOp::Write(word, value)] => self.check(
                        "cuStreamWriteValue32",
                        (library.stream_write_value_32)(stream, word, value, WRITE),
                    )?,
                    _ => self.word_batch(stream, ops)?,
                }
            }
        }
        Ok(())
    }

    /// Makes a stream do several operations in one call, at most `WORD_OPS_PER_CALL`.
    ///
    /// # Safety
    /// The words are aligned, and stay accessible to the device until the stream has done the
    /// operations.
    unsafe fn word_batch(&self, stream: StreamHandle, ops: &[WordOp]) -> Result<()> {
        let mut params = [CUstreamBatchMemOpParams { pad: [0; 6] }; WORD_OPS_PER_CALL];
        for (param, op) in params.iter_mut().zip(ops) {
            *param = param_of(*op);
        }
        // SAFETY: `params` has at least `count` parameters and outlives the call. The caller
        // promises that the words are aligned and stay accessible.
        self.check("cuStreamBatchMemOp", unsafe {
            let (count, start) = (ops.len() as c_uint, params.as_mut_ptr());
            (self.library.stream_batch_mem_op)(stream, count, start, 0)
        })
    }
}

fn param_of(op: WordOp) -> CUstreamBatchMemOpParams {
    type Wait = CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st;
    type WaitValue = CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1;
    type Write = CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st;
    type WriteValue = CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1;
    match op {
        WordOp::Wait(address, value) => CUstreamBatchMemOpParams {
            waitValue: Wait {
                operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32,
                address,
                __bindgen_anon_1: WaitValue { value },
                flags: WAIT,
                alias: 0,
            },
        },
        WordOp::Write(address, value) => CUstreamBatchMemOpParams {
            writeValue: Write {
                operation: CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32,
                address,
                __bindgen_anon_1: WriteValue { value },
                flags: WRITE,
                alias: 0,
            },
        },
    }
}
