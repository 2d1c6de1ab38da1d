//! One task per client connection: turns what sockets do into inputs of the [`Connection`] machine, and its wishes into operations.
//!
//! The task owns both directions of the client's socket and of its legs'. Every operation lives in a slot that is polled until it is
//! ready, so no read of a connection that lives on is ever dropped (under io_uring that loses bytes). A leg that is to be
//! cut has its operation and halves dropped together. The order of polling is fixed: client write, legs, client read, mail and alarm.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::cell::ShardCell;
use super::io::{ReadHalf, Rt, WriteHalf};
use super::leg::{LegDone, LegIo, LegOp, leg_op, leg_read};
use super::letters::ConnectionMail;
use super::line::Tap;
use crate::base::limits;
use crate::base::time::Instant;
use crate::path::accept::{Connection, SLOTS};
use crate::shard::Shard;

/// Serves one client connection until it is closed and its legs have ended.
pub async fn connection<R: Rt>(
    cell: Rc<ShardCell<R>>,
    reader: R::Reader,
    writer: R::Writer,
    peer: SocketAddr,
) {
    let (token, mail) = cell.enlist();
    // When the last thing happened. What follows from it follows at once.
    let mut now = cell.now();
    let loopback = peer.ip().to_canonical().is_loopback();
    let mut conn = Connection::new(&mut cell.shard.borrow_mut(), now, token, loopback);
    let (mut reader, mut writer) = (Some(reader), Some(writer));
    let mut read_buf = Vec::with_capacity(limits::CLIENT_READ_BYTES);
    let mut client_read = pin!(None);
    let mut client_write = pin!(None);
    let mut legs: [LegIo<R>; SLOTS] = Default::default();
    // In boxes, because they are large and seldom; plain reads are here, because a stream is nothing but reads.
    let mut leg_ops: [Boxed<_>; SLOTS] = [None, None];
    let mut leg_reads = [pin!(None), pin!(None)];
    let (mut armed, mut write_from) = (Instant::FAR, 0);
    let (mut turns, mut looks) = (0, false);

    loop {
        // What is wanted, until nothing more is. A leg whose wait is over may fail at once, which makes more wishes: it comes first.
        for (slot, leg) in legs.iter_mut().enumerate() {
            if let Some(op) = leg.wait_over(&cell, &mut conn, slot) {
                begin(&mut leg_ops[slot], leg_op::<R>(op));
            }
        }
        loop {
            let next = conn.next_command(&cell.shard.borrow());
            let Some((slot, command)) = next else { break };
            let op = legs[slot].apply(&cell, &mut conn, slot, command);
            leg_reads[slot].set(None);
            leg_ops[slot] = op.map(|op| Box::pin(Some(leg_op::<R>(op))));
        }
        cell.pass_on(&mut cell.shard.borrow_mut());
        if let Some(half) = writer.take() {
            match conn.take_output(&cell.shard.borrow(), now) {
                Some((buf, from)) => {
                    write_from = from;
                    client_write.set(Some(half.write(buf, from)));
                }
                None => writer = Some(half),
            }
        }
        for (slot, leg) in legs.iter_mut().enumerate() {
            if let Some(op) = leg.send() {
                begin(&mut leg_ops[slot], leg_op::<R>(op));
                continue;
            }
            match leg.read(&cell, &conn, slot) {
                Some((Tap::Plain(reader), buf)) => {
                    leg_ops[slot] = None;
                    leg_reads[slot].set(Some(leg_read::<R>(reader, buf)));
                }
                Some((Tap::Tls(stream), buf)) => {
                    let op = LegOp::ReadTls(stream, buf);
                    begin(&mut leg_ops[slot], leg_op::<R>(op));
                }
                None => {}
            }
        }
        if conn.client_reads()
            && let Some(half) = reader.take()
        {
            let buf = with_room(&mut read_buf, conn.client_read_bytes());
            client_read.set(Some(half.read(buf)));
        }
        if conn.wants_shutdown() {
            let _ = writer.as_mut().map(WriteHalf::shutdown);
        }
        if conn.client_is_done() {
            client_read.set(None);
            client_write.set(None);
            (reader, writer) = (None, None);
            if conn.is_closed() {
                break;
            }
        }
        let due = conn.deadline();
        if due < armed {
            cell.set_alarm(token, armed, due);
            armed = due;
        }

        // A peer that always has more must not starve the other connections of this shard.
        if turns >= TURNS_MAX {
            (turns, looks) = (0, true);
            cell.give_way().await;
        }
        // What happens next.
        let mut waited = false;
        let event = poll_fn(|cx| {
            // Nor its own connection's deadlines, nor the client's end.
            if std::mem::take(&mut looks) {
                if mail.poll(cx).is_ready() {
                    return Poll::Ready(Event::Mail);
                }
                if let Poll::Ready(done) = poll_slot(client_read.as_mut(), cx) {
                    return Poll::Ready(Event::Read(done));
                }
            }
            if let Poll::Ready(done) = poll_slot(client_write.as_mut(), cx) {
                return Poll::Ready(Event::Wrote(done));
            }
            if let Poll::Ready((slot, done)) = poll_legs(&mut leg_reads, &mut leg_ops, cx) {
                return Poll::Ready(Event::Leg(slot, done));
            }
            if let Poll::Ready(done) = poll_slot(client_read.as_mut(), cx) {
                return Poll::Ready(Event::Read(done));
            }
            if legs.iter().any(|leg| leg.poll_wait(&cell, cx).is_ready()) {
                return Poll::Ready(Event::Room);
            }
            if mail.poll(cx).is_ready() {
                return Poll::Ready(Event::Mail);
            }
            waited = true;
            Poll::Pending
        })
        .await;
        turns = if waited { 0 } else { turns + 1 };

        now = cell.now();
        let shard = &mut *cell.shard.borrow_mut();
        match event {
            Event::Wrote((Ok(n), buf, half)) if write_from + n < buf.len() => {
                write_from += n;
                conn.client_progress(shard, now);
                client_write.set(Some(half.write(buf, write_from)));
            }
            Event::Wrote((sent, buf, half)) => {
                writer = Some(half);
                match sent {
                    Ok(_) => conn.client_written(shard, now, buf),
                    Err(_) => conn.client_broken(shard, now),
                }
            }
            Event::Read((got, mut buf, half)) => {
                reader = Some(half);
                match got.is_ok_and(|n| n > 0) {
                    true => conn.client_bytes(shard, now, &buf),
                    false => conn.client_end(shard, now),
                }
                buf.clear();
                read_buf = buf;
            }
            Event::Leg(slot, done) => {
                legs[slot].done(&mut conn, shard, now, slot, done);
                cell.time_read(shard, now);
            }
            Event::Room => {}
            Event::Mail => armed = hear(&mut conn, shard, now, mail.take()).unwrap_or(armed),
        }
    }
    legs.iter_mut().for_each(|leg| leg.drop_connection(&cell));
    cell.delist(token, armed);
}

/// Reads a letter; when the alarm is set for from now on, if it was the alarm.
fn hear(
    conn: &mut Connection,
    shard: &mut Shard,
    now: Instant,
    letter: Option<ConnectionMail>,
) -> Option<Instant> {
    match letter {
        Some(ConnectionMail::Answer(answer)) => conn.control_answer(shard, now, &answer),
        Some(ConnectionMail::Look) => conn.look(shard, now),
        Some(ConnectionMail::CloseIdle) => conn.close_when_idle(shard, now),
        Some(ConnectionMail::Expire) => {
            conn.close_when_idle(shard, now);
            // It has no time left.
            conn.deadline_over(shard, now);
        }
        Some(ConnectionMail::Alarm) => {
            conn.timer(shard, now);
            return Some(Instant::FAR);
        }
        None => {}
    }
    None
}

/// Turns of one connection without a wait before the others get theirs.
const TURNS_MAX: u32 = 64;

enum Event<R: Rt> {
    Wrote((io::Result<usize>, Vec<u8>, R::Writer)),
    Read((io::Result<usize>, Vec<u8>, R::Reader)),
    Leg(usize, LegDone<R>),
    /// A leg that waits for a connection may make one.
    Room,
    Mail,
}

/// A slot in a box, which is there once there was something to put in.
type Boxed<F> = Option<Pin<Box<Option<F>>>>;

/// The empty buffer `kept`, or a new one when it has not `bytes` of capacity.
fn with_room(kept: &mut Vec<u8>, bytes: usize) -> Vec<u8> {
    let buf = std::mem::take(kept);
    if buf.capacity() == bytes {
        return buf;
    }
    Vec::with_capacity(bytes)
}

/// What a leg's operation came to, and the leg's slot.
#[inline]
fn poll_legs<R: Rt, F: Future<Output = LegDone<R>>, G: Future<Output = LegDone<R>>>(
    reads: &mut [Pin<&mut Option<F>>; SLOTS],
    ops: &mut [Boxed<G>; SLOTS],
    cx: &mut Context<'_>,
) -> Poll<(usize, LegDone<R>)> {
    for (slot, (read, op)) in reads.iter_mut().zip(ops).enumerate() {
        if let Poll::Ready(done) = poll_slot(read.as_mut(), cx) {
            return Poll::Ready((slot, done));
        }
        if let Some(op) = op
            && let Poll::Ready(done) = poll_slot(op.as_mut(), cx)
        {
            return Poll::Ready((slot, done));
        }
    }
    Poll::Pending
}

/// Puts `op` into the box of a slot, which is made when there is none.
fn begin<F>(slot: &mut Boxed<F>, op: F) {
    match slot {
        Some(place) => place.as_mut().set(Some(op)),
        None => *slot = Some(Box::pin(Some(op))),
    }
}

/// Polls the future in a slot, if any, and empties the slot when it is ready.
fn poll_slot<F: Future>(mut slot: Pin<&mut Option<F>>, cx: &mut Context<'_>) -> Poll<F::Output> {
    let Some(future) = slot.as_mut().as_pin_mut() else {
        return Poll::Pending;
    };
    let done = future.poll(cx);
    if done.is_ready() {
        slot.set(None);
    }
    done
}
