"""Signals and waits in Triton kernels.

A kernel takes the addresses of a `DeviceEvent` as integers. Only one program of the grid calls the
functions, and all its threads do.

    @triton.jit
    def consume(words, awaited, abort, result):
        status = crosshandle.triton.wait_next(words, awaited, abort, 1_000_000_000)
        tl.store(result, status)

    full = context.device_event(event)
    consume[(1,)](full.words, full.awaited, full.abort, result)

The functions are those of `crosshandle.cuh`, which has the rules. `crosshandle.kernels` has the
results of waits.
"""

from __future__ import annotations

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import triton
import triton.language as tl

# One thread signals. The barriers make it see what the other threads have written.
_SIGNAL = tl.constexpr("""
{
    .reg .pred p;
    .reg .b32 t;
    .reg .b64 n, i, w, b;
    bar.sync 0;
    mov.u64 n, 0;
    setp.eq.u64 p, $2, 0;
    @p bra REFUSED;
    mov.u32 t, %tid.x;
    setp.ne.u32 p, t, 0;
    @p bra DONE;
    atom.add.global.u64 n, [$2], 1;
    add.u64 n, n, 1;
    and.b64 i, n, 1048575;
    setp.ne.u64 p, i, 0;
    @p bra TAKEN;
    mov.u64 b, %globaltimer;
    AHEAD:
    mov.u64 i, %globaltimer;
    sub.u64 i, i, b;
    setp.ge.u64 p, i, 10000000000;
    @p bra DONE;
    ld.acquire.sys.global.u64 w, [$1];
    shr.u64 w, w, 14;
    add.u64 i, n, 2097152;
    setp.lt.u64 p, w, i;
    @p bra AHEAD;
    TAKEN:
    rem.u64 i, n, 7;
    shl.b64 i, i, 3;
    add.u64 i, i, $1;
    shl.b64 w, n, 32;
    st.release.sys.global.u64 [i+8], w;
    DONE:
    bar.sync 0;
    ld.volatile.global.u64 n, [$2];
    REFUSED:
    mov.u64 $0, n;
    bar.sync 0;
}
""")

# One thread waits, and tells the result to the other threads by the word after the count.
_WAIT = tl.constexpr("""
{
    .reg .pred p;
    .reg .b32 t, x, y, s;
    .reg .b64 n, i, w, b, e;
    mov.u32 t, %tid.x;
    setp.ne.u32 p, t, 0;
    @p bra DONE;
    ld.volatile.global.u64 n, [$2];
    add.u64 n, n, 1;
    cvt.u32.u64 y, n;
    rem.u64 i, n, 7;
    shl.b64 i, i, 3;
    add.u64 i, i, $1;
    mov.u64 b, %globaltimer;
    mov.u32 t, 0;
    POLL:
    ld.acquire.sys.global.u64 w, [i+8];
    shr.u64 e, w, 32;
    cvt.u32.u64 x, e;
    sub.u32 x, x, y;
    setp.ge.s32 p, x, 0;
    @p bra REACHED;
    mov.u64 e, %globaltimer;
    sub.u64 e, e, b;
    mov.u32 s, 1;
    setp.ge.u64 p, e, $4;
    @p bra TELL;
    add.u32 t, t, 1;
    and.b32 x, t, 63;
    setp.ne.u32 p, x, 0;
    @p bra POLL;
    ld.relaxed.sys.global.u32 x, [$3];
    and.b32 x, x, 1;
    mov.u32 s, 4;
    setp.ne.u32 p, x, 0;
    @p bra TELL;
    bra POLL;
    REACHED:
    st.volatile.global.u64 [$2], n;
    mov.u32 s, 0;
    and.b64 e, w, 2147483648;
    setp.ne.u64 p, e, 0;
    @p bra MARKED;
    setp.eq.s32 p, x, 0;
    @p bra TELL;
    MARKED:
    ld.acquire.sys.global.u64 w, [i+192];
    ld.acquire.sys.global.u64 e, [i+128];
    setp.eq.u64 p, e, 0;
    @p bra TELL;
    setp.lt.u64 p, n, e;
    @p bra TELL;
    shr.u64 e, w, 14;
    setp.gt.u64 p, n, e;
    @p bra TELL;
    shr.u64 e, w, 12;
    and.b64 e, e, 3;
    mov.u32 s, 3;
    setp.eq.u64 p, e, 2;
    @p bra TELL;
    mov.u32 s, 2;
    TELL:
    st.volatile.global.u32 [$2+8], s;
    DONE:
    bar.sync 0;
    ld.volatile.global.u32 $0, [$2+8];
    bar.sync 0;
}
""")


@triton.jit
def signal(words, signalled):  # type: ignore[no-untyped-def]
    """Signals an event after everything that the program has written. Returns the number, or 0 if
    the code may only wait for the event."""
    return tl.inline_asm_elementwise(
        _SIGNAL,
        "=l,l,l",
        [words.to(tl.uint64), signalled.to(tl.uint64)],
        dtype=tl.uint64,
        is_pure=False,
        pack=1,
    )


@triton.jit
def wait_next(words, awaited, abort, timeout):  # type: ignore[no-untyped-def]
    """Waits for the next signal of an event, for at most `timeout` nanoseconds. Returns the result
    (`crosshandle.kernels.COMPLETE` and so on)."""
    return tl.inline_asm_elementwise(
        _WAIT,
        "=r,l,l,l,l",
        [words.to(tl.uint64), awaited.to(tl.uint64), abort.to(tl.uint64), tl.full([], timeout, tl.uint64)],
        dtype=tl.uint32,
        is_pure=False,
        pack=1,
    )
