//! One connection to a target, and one request on it at a time.

use std::net::SocketAddr;

use narwhal::runtime::io::{ReadHalf, Rt, WriteHalf};

use super::answer::{Answer, Want};
use super::stamp;

/// See the head of this file.
pub struct Client<R: Rt> {
    reader: Option<R::Reader>,
    writer: Option<R::Writer>,
    /// The next request.
    pub out: Vec<u8>,
    buf: Vec<u8>,
    pub answer: Answer,
}

/// What one read brought.
pub struct Read<'a> {
    pub at_ns: u64,
    /// Of each token, from its write to now.
    pub under_way_ns: &'a [u64],
}

const READ_BYTES: usize = 16 << 10;

impl<R: Rt> Client<R> {
    pub async fn connect(to: SocketAddr) -> Result<Client<R>, String> {
        Self::with_buffer(to, READ_BYTES).await
    }

    pub async fn with_buffer(to: SocketAddr, bytes: usize) -> Result<Client<R>, String> {
        let connected = R::connect(to).await;
        let (reader, writer) = connected.map_err(|error| format!("connect: {error}"))?;
        Ok(Client {
            reader: Some(reader),
            writer: Some(writer),
            out: Vec::new(),
            buf: Vec::with_capacity(bytes),
            answer: Answer::new(),
        })
    }

    /// Sends `out` and reads its answer to the end.
    pub async fn exchange(&mut self, want: Want, mut each: impl FnMut(Read)) -> Result<(), String> {
        self.send(want).await?;
        while !self.answer.is_over() {
            each(self.read().await?);
        }
        if !self.buf.is_empty() {
            return Err(format!("{}: bytes behind the answer", want.tag));
        }
        Ok(())
    }

    pub async fn send(&mut self, want: Want) -> Result<(), String> {
        let writer = self.writer.take().ok_or("no connection")?;
        let (sent, out, writer) = writer.write_all(std::mem::take(&mut self.out), 0).await;
        (self.out, self.writer) = (out, Some(writer));
        sent.map_err(|error| format!("send: {error}"))?;
        self.answer.begin(want);
        Ok(())
    }

    /// One read of the answer.
    pub async fn read(&mut self) -> Result<Read<'_>, String> {
        if self.buf.len() == self.buf.capacity() {
            self.buf.reserve(self.buf.len());
        }
        let reader = self.reader.take().ok_or("no connection")?;
        let (got, buf, reader) = reader.read(std::mem::take(&mut self.buf)).await;
        (self.buf, self.reader) = (buf, Some(reader));
        let at_ns = stamp::now_ns();
        let Answer { tokens, .. } = self.answer;
        match got {
            Ok(0) => return Err(format!("closed after {tokens} tokens")),
            Ok(_) => {}
            Err(error) => return Err(format!("read after {tokens} tokens: {error}")),
        }
        let used = self.answer.bytes(&self.buf, at_ns);
        let used = used.map_err(|why| format!("after {tokens} tokens: {why}"))?;
        self.buf.drain(..used);
        Ok(Read {
            at_ns,
            under_way_ns: &self.answer.under_way_ns,
        })
    }
}
