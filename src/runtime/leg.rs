//! A leg slot's socket: dials, sends and reads for one engine request at a time, as the machine commands.
//!
//! Connection and buffer are here while no operation holds them; an operation owns what it uses. Invariant: a leg that holds a
//! connection counts among its engine's until it is parked or dropped.

use std::io;
use std::task::{Context, Poll};

use super::cell::ShardCell;
use super::io::{ReadHalf, Rt};
use super::line::{self, Dial, DialFault, Line, Tap};
use super::read_buffer::ReadBuffer;
use super::tls::TlsStream;
use crate::base::time::Instant;
use crate::base::units::EngineId;
use crate::path::accept::Connection;
use crate::path::leg::{LegCommand, LegFault};
use crate::shard::{Note, Shard};

/// A leg slot's connection, as far as no operation holds it.
pub(super) struct LegIo<R: Rt> {
    line: Option<Line<R>>,
    /// The buffer that engine reads go through.
    buf: ReadBuffer,
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

/// What a leg does on its socket, but for plain reads.
pub(super) enum LegOp<R: Rt> {
    Dial(Dial),
    Send(Line<R>, Vec<u8>),
    ReadTls(Box<TlsStream<R>>, Vec<u8>),
}

/// What came of an operation.
pub(super) enum LegDone<R: Rt> {
    Dialed(Result<Line<R>, DialFault>),
    Sent(Vec<u8>, Line<R>),
    Read(io::Result<usize>, Vec<u8>, Tap<R>),
}

/// One operation of a leg. A single type, so that a slot can hold either.
pub(super) async fn leg_op<R: Rt>(op: LegOp<R>) -> LegDone<R> {
    match op {
        LegOp::Dial(dial) => LegDone::Dialed(line::dial(dial).await),
        LegOp::Send(line, request) => {
            let (_, buf, line) = line.send(request).await;
            LegDone::Sent(buf, line)
        }
        LegOp::ReadTls(stream, buf) => {
            let (got, buf, stream) = stream.read(buf).await;
            LegDone::Read(got, buf, Tap::Tls(stream))
        }
    }
}

/// One plain read of a leg. By itself because a stream is nothing but reads: what is small stays in the processor's cache.
pub(super) async fn leg_read<R: Rt>(reader: R::Reader, buf: Vec<u8>) -> LegDone<R> {
    let (got, buf, reader) = reader.read(buf).await;
    LegDone::Read(got, buf, Tap::Plain(reader))
}

impl<R: Rt> Default for LegIo<R> {
    fn default() -> Self {
        LegIo {
            line: None,
            buf: ReadBuffer::default(),
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
    pub(super) fn apply(
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
                let line = self.line.take().filter(Line::is_whole);
                if let (Some(engine), Some(line)) = (self.engine, line) {
                    cell.pool_put(engine, line);
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
        if self.waiting && !conn.leg_may_go(&mut cell.shard.borrow_mut(), now, slot) {
            return None;
        }
        if !cell.held().take(engine) {
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
        if pooled.is_some() {
            self.line = pooled;
            // The way is there: from here on it is the engine's time.
            conn.leg_connected(slot);
            return self.send();
        }
        let dial = cell.dial(engine);
        if dial.is_none() {
            conn.leg_failed(&mut cell.shard.borrow_mut(), now, slot, LegFault::Connect);
        }
        dial.map(LegOp::Dial)
    }

    /// Connects when a wait is over.
    pub(super) fn wait_over(
        &mut self,
        cell: &ShardCell<R>,
        conn: &mut Connection,
        slot: usize,
    ) -> Option<LegOp<R>> {
        match self.waiting {
            true => self.connect(cell, conn, slot),
            false => None,
        }
    }

    /// Ready when a wait for a connection may be over.
    pub(super) fn poll_wait(&self, cell: &ShardCell<R>, cx: &Context<'_>) -> Poll<()> {
        match self.engine.filter(|_| self.waiting) {
            Some(engine) if cell.held().has_room(engine) => Poll::Ready(()),
            Some(engine) => {
                cell.held().wait_for(engine, cx.waker());
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }

    /// The request, once the connection for it is there.
    pub(super) fn send(&mut self) -> Option<LegOp<R>> {
        if self.request.is_empty() {
            return None;
        }
        let line = self.line.take()?;
        Some(LegOp::Send(line, std::mem::take(&mut self.request)))
    }

    /// The next read, when the machine wants one and the connection is free for it.
    #[inline]
    pub(super) fn read(
        &mut self,
        cell: &ShardCell<R>,
        conn: &Connection,
        slot: usize,
    ) -> Option<(Tap<R>, Vec<u8>)> {
        let line = self.line.as_mut()?;
        if !conn.leg_reads(slot) {
            return None;
        }
        let tap = line.lend()?;
        Some((tap, self.buf.take(cell.free_buffers())))
    }

    pub(super) fn done(
        &mut self,
        conn: &mut Connection,
        shard: &mut Shard,
        now: Instant,
        slot: usize,
        done: LegDone<R>,
    ) {
        match done {
            LegDone::Dialed(Ok(line)) => {
                if conn.leg_may_go(shard, now, slot) {
                    self.line = Some(line);
                    conn.leg_connected(slot);
                }
            }
            LegDone::Dialed(Err(DialFault::Shortage)) => {
                conn.leg_failed(shard, now, slot, LegFault::Shortage);
            }
            LegDone::Dialed(Err(fault)) => {
                self.tell(shard, fault);
                conn.leg_failed(shard, now, slot, LegFault::Connect);
            }
            LegDone::Sent(request, line) => {
                // An engine may refuse before it has read everything, so a failed send is not the last word: the read is.
                shard.give_buffer(request);
                self.line = Some(line);
                conn.leg_sent(shard, now, slot, self.reused);
            }
            LegDone::Read(got, buf, tap) => {
                if let Some(line) = &mut self.line {
                    line.give_back(tap);
                }
                match got {
                    Ok(0) => conn.leg_eof(shard, now, slot),
                    Ok(_) => conn.leg_bytes(shard, now, slot, &buf),
                    Err(_) => conn.leg_failed(shard, now, slot, LegFault::Broken),
                }
                self.buf.back(buf);
            }
        }
    }

    /// Why TLS failed is told once for each engine: whoever set its certificate up has to know.
    fn tell(&self, shard: &mut Shard, fault: DialFault) {
        let (DialFault::Tls(why), Some(engine)) = (fault, self.engine) else {
            return;
        };
        if shard.shared.board.line(engine).mark_tls_failed() {
            shard.note(Note::TlsFailed { engine, why });
        }
    }

    pub(super) fn drop_connection(&mut self, cell: &ShardCell<R>) {
        if let (true, Some(engine)) = (self.holds, self.engine) {
            cell.held().let_go(engine);
        }
        (self.line, self.engine) = (None, None);
        (self.holds, self.waiting) = (false, false);
        self.buf.give(cell.free_buffers());
        self.request = Vec::new();
    }
}
