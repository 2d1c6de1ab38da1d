//! Clients: what each asks on one connection, how fast it sends and reads, and when and how it leaves.

use std::time::Duration;

use narwhal::base::prng::Prng;
use narwhal::base::time::Instant;

use crate::answers::Answers;
use crate::net::{Ending, Got, Link, Wake};
use crate::plan::{on, pick};
use crate::requests::{self, Asked};
use crate::world::World;

pub struct Client {
    pub wake_at: Instant,
    pub link: Link,
    pub conn: usize,
    pub asked: Vec<Asked>,
    /// Requests whose sending has begun.
    begun: usize,
    pipelines: bool,
    upload: Vec<u8>,
    sends: Pace,
    reads: Pace,
    /// It reads no further than this.
    reads_most: usize,
    leaves: Option<Leaves>,
    manner: Manner,
    pub answers: Answers,
    pub sent: usize,
    /// It has left, or stopped reading: what it has may end anywhere.
    pub rude: bool,
    pub gone: bool,
    /// The router closed.
    pub dismissed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pace {
    every: Duration,
    bytes: usize,
    next: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Leaves {
    At(Instant),
    Sent(usize),
    Received(usize),
}

#[derive(Clone, Copy, Debug)]
enum Manner {
    /// Only the sending side is closed.
    Half,
    Close,
    Reset,
}

fn pace_of(at: Instant, every_ms: u64, bytes: usize) -> Pace {
    Pace {
        every: Duration::from_millis(every_ms),
        bytes,
        next: at,
    }
}

impl World {
    /// A client connects to a shard.
    pub fn arrive(&mut self) {
        let i = self.clients.len();
        let c = self.conns.len();
        let people = self.plan.people;
        let chance = &mut self.chance;
        let link = self.net.link(chance, Wake::Client(i), Wake::Conn(c));
        let count = 1 + chance.below(3);
        let asked = (0..count).map(|n| requests::request(chance, &self.plan, n + 1 == count));
        let asked: Vec<Asked> = asked.collect();
        let most: usize = asked.iter().map(|a| a.bytes.len()).sum();
        let at = self.now;
        let mut pace = |slow: bool, every: &[u64], bytes: &[usize]| match slow {
            false => Pace {
                every: Duration::ZERO,
                bytes: usize::MAX,
                next: at,
            },
            true => {
                let every = pick(chance, every);
                pace_of(at, every, pick(chance, bytes))
            }
        };
        let slow_sender = on(&mut self.dice, people.slow_sender);
        let slow_reader = on(&mut self.dice, people.slow_reader);
        let sends = pace(slow_sender, &[1, 40, 700], &[1, 30, 400]);
        let reads = pace(slow_reader, &[1, 20, 400], &[40, 1_000, 20_000]);
        // From chance of its own: one in ten of the slow ones takes a byte a second.
        let mut drop = Prng::new(self.plan.seed ^ (i as u64) << 40 ^ 0xb17e);
        let reads = match slow_reader && on(&mut drop, 10) {
            true => pace_of(at, 1_000, 1),
            false => reads,
        };
        let leaves = on(chance, people.leaves).then(|| match chance.below(4) {
            0 => Leaves::Sent(chance.below(most as u64 + 1) as usize),
            1 => Leaves::Received(chance.below(2_000) as usize),
            _ => Leaves::At(at + Duration::from_micros(chance.below(600_000))),
        });
        let manner = pick(chance, &[Manner::Half, Manner::Close, Manner::Reset]);
        let reads_most = match slow_reader && on(chance, 30) {
            true => chance.below(5_000) as usize,
            false => usize::MAX,
        };
        let shard = chance.below(self.plan.shards as u64) as usize;
        let pipelines = on(chance, people.pipelines);
        self.clients.push(Client {
            wake_at: Instant::FAR,
            link,
            conn: c,
            asked,
            begun: 0,
            pipelines,
            upload: Vec::new(),
            sends,
            reads,
            reads_most,
            leaves,
            manner,
            answers: Answers::default(),
            sent: 0,
            rude: slow_reader || slow_sender,
            gone: false,
            dismissed: false,
        });
        self.trace.step(self.now, Wake::Client(i), "arrives", count);
        self.accept(shard, link);
        self.poke(Wake::Client(i), self.now);
    }

    pub fn client_turn(&mut self, i: usize) {
        if self.clients[i].gone {
            return;
        }
        self.client_reads(i);
        if self.clients[i].dismissed {
            return self.client_leaves(i, false);
        }
        let client = &self.clients[i];
        let leaves = client.leaves.is_some_and(|leaves| match leaves {
            Leaves::At(at) => at <= self.now,
            Leaves::Sent(most) => client.sent >= most,
            Leaves::Received(most) => client.answers.bytes > most,
        });
        if leaves {
            return self.client_leaves(i, true);
        }
        self.client_sends(i);
        let client = &self.clients[i];
        let is_done = client.begun == client.asked.len()
            && client.upload.is_empty()
            && client.answers.whole() >= client.asked.len();
        if is_done {
            return self.client_leaves(i, false);
        }
        if let Some(Leaves::At(at)) = client.leaves {
            self.poke(Wake::Client(i), at);
        }
    }

    fn client_reads(&mut self, i: usize) {
        let client = &mut self.clients[i];
        if client.reads.next > self.now {
            let at = client.reads.next;
            return self.poke(Wake::Client(i), at);
        }
        let left = client.reads_most.saturating_sub(client.answers.bytes);
        if left == 0 {
            return;
        }
        let mut bytes = Vec::new();
        let most = client.reads.bytes.min(left);
        let got = self.net.read(
            &mut self.chance,
            self.now,
            client.link.down,
            most,
            &mut bytes,
        );
        match got {
            Got::Nothing => {}
            Got::Bytes(n) => {
                self.trace
                    .step(self.now, Wake::Client(i), "reads", n as u64);
                client.answers.feed(&bytes, &client.asked);
                client.reads.next = self.now + client.reads.every;
            }
            Got::End(ending) => {
                self.trace.step(self.now, Wake::Client(i), "dismissed", 0);
                client.dismissed = true;
                if ending == Ending::Fin {
                    client.answers.fin();
                }
                return;
            }
        }
        let at = self
            .net
            .readable_at(client.link.down)
            .max(client.reads.next);
        if at != Instant::FAR {
            self.poke(Wake::Client(i), at);
        }
    }

    fn client_sends(&mut self, i: usize) {
        let client = &mut self.clients[i];
        if client.upload.is_empty() && client.begun < client.asked.len() {
            let answered = client.answers.whole() >= client.begun;
            if client.pipelines || answered {
                client.upload = client.asked[client.begun].bytes.clone();
                client.begun += 1;
            }
        }
        if client.upload.is_empty() {
            return;
        }
        if client.sends.next > self.now {
            let at = client.sends.next;
            return self.poke(Wake::Client(i), at);
        }
        let Some(room) = self.net.room(client.link.up, self.now) else {
            return;
        };
        let n = room.min(client.sends.bytes).min(client.upload.len());
        if n == 0 {
            return;
        }
        self.net.write(
            &mut self.chance,
            self.now,
            client.link.up,
            &client.upload[..n],
        );
        client.upload.drain(..n);
        client.sent += n;
        client.sends.next = self.now + client.sends.every;
        self.trace
            .step(self.now, Wake::Client(i), "sends", n as u64);
        self.poke(Wake::Client(i), self.clients[i].sends.next);
    }

    /// `rudely`: before it has what it asked for.
    pub fn client_leaves(&mut self, i: usize, rudely: bool) {
        let client = &mut self.clients[i];
        if client.gone {
            return;
        }
        client.rude |= rudely;
        let link = client.link;
        self.trace
            .step(self.now, Wake::Client(i), "leaves", u64::from(rudely));
        let (chance, now) = (&mut self.chance, self.now);
        match client.manner {
            Manner::Half if rudely => {
                self.net.end(chance, now, link.up, Ending::Fin);
                // It goes on reading until the router closes.
                client.leaves = None;
                client.upload.clear();
                client.begun = client.asked.len();
                client.manner = Manner::Close;
                self.poke(Wake::Client(i), now);
            }
            Manner::Reset if rudely => {
                client.gone = true;
                self.net
                    .close(chance, now, link.down, link.up, Ending::Reset);
            }
            _ => {
                client.gone = true;
                self.net.close(chance, now, link.down, link.up, Ending::Fin);
            }
        }
    }
}
