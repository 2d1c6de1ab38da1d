//! Chunks as uvicorn frames them. Pure; works in the caller's buffer.
//!
//! Invariant: what stands before the chunk is not touched.

/// Leaves room for a chunk's size at the end of `out`; what follows is the chunk's data.
pub fn open_chunk(out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(ROOM);
    out.len()
}

/// Writes the size of the data from `room` on, without leading zeros as uvicorn does, and the line end behind it.
pub fn close_chunk(room: usize, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let size = out.len() - room;
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1) as usize;
    let wanted = digits + 2;
    let start = room - ROOM.len();
    // Nearly every event has a size of three digits, and stays where it is.
    if wanted < ROOM.len() {
        out.copy_within(room.., start + wanted);
        out.truncate(start + wanted + size);
    } else if wanted > ROOM.len() {
        out.resize(start + wanted + size, 0);
        out.copy_within(room..room + size, start + wanted);
    }
    for (i, byte) in out[start..start + digits].iter_mut().enumerate() {
        *byte = HEX[(size >> (4 * (digits - 1 - i))) & 15];
    }
    out[start + digits..start + wanted].copy_from_slice(b"\r\n");
    out.extend_from_slice(b"\r\n");
}

/// Three digits and the line end.
const ROOM: &[u8] = b"000\r\n";
