//! One task per client connection: turns what sockets do into inputs of the [`Connection`] machine, and its wishes into operations.
//!
//! The task owns both directions of the client's socket and of its legs'. Every operation lives in a slot that is polled until it is
//! ready, so no read of a connection that lives on is ever dropped (RUNTIME note: under io_uring that loses bytes). A leg that is to be
//! cut has its operation and halves dropped together. The order of polling is fixed: client write, legs, client read, mail, timer.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::cell::{ConnectionMail, ShardCell};
use super::io::{ReadHalf, Rt, WriteHalf};
use crate::base::limits;
use crate::base::time::Instant;
use crate::base::units::EngineId;
use crate::path::accept::{Connection, SLOTS};
use crate::path::leg::{LegCommand, LegFault};

/// Serves one client connection until it is closed and its legs have ended.
pub async fn connection<R: Rt>(
    cell: Rc<ShardCell<R>>,
    reader: R::Reader,
    writer: R::Writer,
    peer: SocketAddr,
) {
    let (token, mail) = cell.enlist();
    let mut conn = Connection::new(
        &mut cell.shard.borrow_mut(),
        cell.now(),
        token,
        peer.ip().is_loopback(),
    );
    let mut reader = Some(reader);
    let mut writer = Some(writer);
    let mut read_buf = Vec::with_capacity(limits::CLIENT_READ_BYTES);
    let mut client_read = pin!(None);
    let mut client_write = pin!(None);
    let mut write_from = 0;
    let mut legs: [LegIo<R>; SLOTS] = Default::default();
    let mut leg_ops = [Box::pin(None), Box::pin(None)];
    let mut timer = pin!(None);
    let mut armed = Instant::FAR;
    let mut turns = 0;

    loop {
        // What is wanted, until nothing more is.
        loop {
            let next = conn.next_command(&cell.shard.borrow());
            let Some((slot, command)) = next else { break };
            let op = legs[slot]
                .apply(&cell, &mut conn, slot, command)
                .map(leg_op::<R>);
            leg_ops[slot].as_mut().set(op);
        }
        if let Some(half) = writer.take() {
            match conn.take_output(&cell.shard.borrow(), cell.now()) {
                Some((buf, from)) => {
                    write_from = from;
                    client_write.set(Some(half.write(buf, from)));
                }
                None => writer = Some(half),
            }
        }
        for (slot, leg) in legs.iter_mut().enumerate() {
            if leg.waiting {
                let op = leg.connect(&cell, &mut conn, slot).map(leg_op::<R>);
                leg_ops[slot].as_mut().set(op);
            }
            if let Some(op) = leg.send() {
                leg_ops[slot].as_mut().set(Some(leg_op::<R>(op)));
            } else if conn.leg_reads(slot)
                && let Some(op) = leg.read(&cell)
            {
                leg_ops[slot].as_mut().set(Some(leg_op::<R>(op)));
            }
        }
        if conn.client_reads()
            && let Some(half) = reader.take()
        {
            let bytes = conn.client_read_bytes();
            if read_buf.capacity() != bytes {
                read_buf = Vec::with_capacity(bytes);
            }
            client_read.set(Some(half.read(std::mem::take(&mut read_buf))));
        }
        if conn.wants_shutdown()
            && let Some(half) = writer.as_mut()
        {
            let _ = half.shutdown();
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
            timer.set(Some(R::sleep(due.since(cell.now()))));
            armed = due;
        }

        // What happens next.
        let mut waited = false;
        let event = poll_fn(|cx| {
            // A peer that always has more must not starve the other connections of this shard.
            if turns >= TURNS_MAX {
                turns = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Poll::Ready(done) = poll_slot(client_write.as_mut(), cx) {
                return Poll::Ready(Event::Wrote(done));
            }
            for (slot, op) in leg_ops.iter_mut().enumerate() {
                if let Poll::Ready(done) = poll_slot(op.as_mut(), cx) {
                    return Poll::Ready(Event::Leg(slot, done));
                }
            }
            if let Poll::Ready(done) = poll_slot(client_read.as_mut(), cx) {
                return Poll::Ready(Event::Read(done));
            }
            for leg in legs.iter().filter(|leg| leg.waiting) {
                if let Some(engine) = leg.engine {
                    cell.wait_for(engine, cx.waker());
                }
            }
            if mail.poll(cx).is_ready() {
                return Poll::Ready(Event::Mail);
            }
            if poll_slot(timer.as_mut(), cx).is_ready() {
                return Poll::Ready(Event::Timer);
            }
            waited = true;
            Poll::Pending
        })
        .await;
        turns = if waited { 0 } else { turns + 1 };

        let now = cell.now();
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
                match got {
                    Ok(n) if n > 0 => conn.client_bytes(shard, now, &buf),
                    _ => conn.client_end(shard, now),
                }
                buf.clear();
                read_buf = buf;
            }
            Event::Leg(slot, done) => legs[slot].done(&mut conn, shard, now, slot, done),
            Event::Mail => match mail.take() {
                Some(ConnectionMail::Answer(answer)) => conn.control_answer(shard, now, &answer),
                Some(ConnectionMail::CloseIdle) => conn.close_when_idle(shard, now),
                None => {}
            },
            Event::Timer => {
                armed = Instant::FAR;
                conn.timer(shard, now);
            }
        }
        cell.pass_on(shard);
    }
    for leg in &mut legs {
        leg.drop_connection(&cell);
    }
    cell.delist(token);
}

/// Turns of one connection without a wait before the others get theirs.
const TURNS_MAX: u32 = 64;

enum Event<R: Rt> {
    Wrote((io::Result<usize>, Vec<u8>, R::Writer)),
    Read((io::Result<usize>, Vec<u8>, R::Reader)),
    Leg(usize, LegDone<R>),
    Mail,
    Timer,
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

/// A leg slot's connection, as far as no operation holds it.
struct LegIo<R: Rt> {
    reader: Option<R::Reader>,
    writer: Option<R::Writer>,
    /// The buffer that engine reads go through.
    buf: Vec<u8>,
    engine: Option<EngineId>,
    fresh: bool,
    /// For a connection to `engine` to be let go.
    waiting: bool,
    /// Whether this leg counts among those that hold a connection to `engine`.
    holds: bool,
    /// What is to be sent once connected.
    request: Vec<u8>,
    reused: bool,
}

enum LegOp<R: Rt> {
    Dial(SocketAddr),
    Send(R::Writer, Vec<u8>),
    Read(R::Reader, Vec<u8>),
}

enum LegDone<R: Rt> {
    Dialed(io::Result<(R::Reader, R::Writer)>),
    Sent(Vec<u8>, R::Writer),
    Read(io::Result<usize>, Vec<u8>, R::Reader),
}

/// One operation of a leg. A single type for all of them, so that a slot can hold any without a box each.
async fn leg_op<R: Rt>(op: LegOp<R>) -> LegDone<R> {
    match op {
        LegOp::Dial(addr) => LegDone::Dialed(R::connect(addr).await),
        LegOp::Send(writer, request) => {
            let (_, buf, writer) = writer.write_all(request, 0).await;
            LegDone::Sent(buf, writer)
        }
        LegOp::Read(reader, buf) => {
            let (got, buf, reader) = reader.read(buf).await;
            LegDone::Read(got, buf, reader)
        }
    }
}

impl<R: Rt> Default for LegIo<R> {
    fn default() -> Self {
        LegIo {
            reader: None,
            writer: None,
            buf: Vec::new(),
            engine: None,
            fresh: false,
            waiting: false,
            holds: false,
            request: Vec::new(),
            reused: false,
        }
    }
}

impl<R: Rt> LegIo<R> {
    /// Carries out a command; the operation it begins, if any, replaces the one in flight.
    fn apply(
        &mut self,
        cell: &ShardCell<R>,
        conn: &mut Connection,
        slot: usize,
        command: LegCommand,
    ) -> Option<LegOp<R>> {
        match command {
            LegCommand::Open {
                engine,
                request,
                fresh,
                ..
            } => {
                self.drop_connection(cell);
                (self.engine, self.request, self.fresh) = (Some(engine), request, fresh);
                self.connect(cell, conn, slot)
            }
            LegCommand::Close => {
                self.drop_connection(cell);
                None
            }
            LegCommand::Park => {
                if let (Some(engine), Some(reader), Some(writer)) =
                    (self.engine, self.reader.take(), self.writer.take())
                {
                    cell.pool_put(engine, (reader, writer));
                }
                self.drop_connection(cell);
                None
            }
        }
    }

    /// A connection for the request that is to be sent: a pooled one, a new one, or a place among those who wait.
    fn connect(
        &mut self,
        cell: &ShardCell<R>,
        conn: &mut Connection,
        slot: usize,
    ) -> Option<LegOp<R>> {
        let engine = self.engine?;
        let now = cell.now();
        if !cell.hold(engine) {
            if !self.waiting {
                conn.leg_waits(&cell.shard.borrow(), now, slot);
            }
            self.waiting = true;
            return None;
        }
        self.holds = true;
        if std::mem::take(&mut self.waiting) {
            conn.leg_opens(&cell.shard.borrow(), now, slot);
        }
        let pooled = if self.fresh {
            None
        } else {
            cell.pool_take(engine)
        };
        self.reused = pooled.is_some();
        if let Some((reader, writer)) = pooled {
            (self.reader, self.writer) = (Some(reader), Some(writer));
            return self.send();
        }
        let addr = cell.address(engine);
        if addr.is_none() {
            conn.leg_failed(&mut cell.shard.borrow_mut(), now, slot, LegFault::Connect);
        }
        addr.map(LegOp::Dial)
    }

    /// The request, once the connection for it is there.
    fn send(&mut self) -> Option<LegOp<R>> {
        if self.request.is_empty() {
            return None;
        }
        let writer = self.writer.take()?;
        Some(LegOp::Send(writer, std::mem::take(&mut self.request)))
    }

    /// The next read, when the connection is free for it.
    fn read(&mut self, cell: &ShardCell<R>) -> Option<LegOp<R>> {
        let reader = self.reader.take()?;
        let mut buf = std::mem::take(&mut self.buf);
        if buf.capacity() == 0 {
            buf = cell.take_read_buffer();
        }
        Some(LegOp::Read(reader, buf))
    }

    fn done(
        &mut self,
        conn: &mut Connection,
        shard: &mut crate::shard::Shard,
        now: Instant,
        slot: usize,
        done: LegDone<R>,
    ) {
        match done {
            LegDone::Dialed(Ok((reader, writer))) => {
                self.reader = Some(reader);
                self.writer = Some(writer);
                conn.leg_connected(slot);
            }
            LegDone::Dialed(Err(_)) => conn.leg_failed(shard, now, slot, LegFault::Connect),
            LegDone::Sent(request, writer) => {
                // An engine may refuse before it has read everything, so a failed send is not the last word: the read is.
                shard.give_buffer(request);
                self.writer = Some(writer);
                conn.leg_sent(shard, now, slot, self.reused);
            }
            LegDone::Read(got, mut buf, reader) => {
                self.reader = Some(reader);
                match got {
                    Ok(0) => conn.leg_eof(shard, now, slot),
                    Ok(_) => conn.leg_bytes(shard, now, slot, &buf),
                    Err(_) => conn.leg_failed(shard, now, slot, LegFault::Broken),
                }
                buf.clear();
                self.buf = buf;
            }
        }
    }

    fn drop_connection(&mut self, cell: &ShardCell<R>) {
        if let (true, Some(engine)) = (self.holds, self.engine) {
            cell.let_go(engine);
        }
        (self.reader, self.writer, self.engine) = (None, None, None);
        (self.holds, self.waiting) = (false, false);
        cell.give_read_buffer(std::mem::take(&mut self.buf));
        self.request = Vec::new();
    }
}
