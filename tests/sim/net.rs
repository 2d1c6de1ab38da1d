//! The network: pipes that carry bytes one way, in order, late, cut anywhere. Two of them are a socket.
//!
//! Invariant: what is read is what was written, in order, unless a reset swallows the rest; `buffered` = bytes written and not read.

use std::collections::VecDeque;
use std::time::Duration;

use narwhal::base::prng::Prng;
use narwhal::base::time::Instant;

/// Whoever is to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wake {
    Conn(usize),
    Client(usize),
    Host(usize),
    /// Mail of a shard.
    Mail(usize),
    /// A shard looks around.
    House(usize),
    Arrival,
    Chaos(usize),
}

/// Two pipes: `up` from the side that dialed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub up: usize,
    pub down: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Fin,
    Reset,
}

/// What a read finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Got {
    /// So many bytes were appended to the buffer.
    Bytes(usize),
    Nothing,
    End(Ending),
}

#[derive(Debug)]
struct Pipe {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    /// Bytes of the first piece that were read.
    read: usize,
    buffered: usize,
    /// When it was last read.
    read_at: Instant,
    /// Most that may be buffered.
    room: usize,
    last_at: Instant,
    ending: Option<(Instant, Ending)>,
    /// The reader is gone: writes fail from then on.
    deaf: Option<Instant>,
    /// Reads are at most this long.
    crumb: usize,
    reader: Wake,
    writer: Wake,
}

#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub least: Duration,
    pub jitter: Duration,
    /// Writes arrive in parts, and reads are cut anywhere.
    pub crumbs: bool,
    /// Most bytes on the way, each direction.
    pub room: usize,
}

/// All pipes of a world, and who has to look because of what happened in them.
#[derive(Debug)]
pub struct Net {
    pipes: Vec<Pipe>,
    pub wakes: Vec<(Instant, Wake)>,
    pub weather: Weather,
}

impl Net {
    pub fn new(weather: Weather) -> Self {
        Net {
            pipes: Vec::new(),
            wakes: Vec::new(),
            weather,
        }
    }

    pub fn delay(&self, chance: &mut Prng) -> Duration {
        let jitter = self.weather.jitter.as_nanos() as u64;
        self.weather.least + Duration::from_nanos(chance.below(jitter + 1))
    }

    pub fn link(&mut self, chance: &mut Prng, dialer: Wake, listener: Wake) -> Link {
        let up = self.pipe(chance, listener, dialer);
        let down = self.pipe(chance, dialer, listener);
        Link { up, down }
    }

    fn pipe(&mut self, chance: &mut Prng, reader: Wake, writer: Wake) -> usize {
        let crumb = match self.weather.crumbs {
            true => [usize::MAX, usize::MAX, 1_000, 300, 64, 7][chance.below(6) as usize],
            false => usize::MAX,
        };
        self.pipes.push(Pipe {
            pieces: VecDeque::new(),
            read: 0,
            buffered: 0,
            read_at: Instant::ZERO,
            room: self.weather.room,
            last_at: Instant::ZERO,
            ending: None,
            deaf: None,
            crumb,
            reader,
            writer,
        });
        self.pipes.len() - 1
    }

    /// A pooled connection goes to another owner.
    pub fn hand_over(&mut self, link: Link, to: Wake) {
        self.pipes[link.up].writer = to;
        self.pipes[link.down].reader = to;
    }

    /// How many bytes may be written now; `None` when nobody will read them.
    pub fn room(&self, pipe: usize, now: Instant) -> Option<usize> {
        let pipe = &self.pipes[pipe];
        let broken = pipe.deaf.is_some_and(|at| at <= now);
        (!broken).then(|| pipe.room.saturating_sub(pipe.buffered))
    }

    pub fn buffered(&self, pipe: usize) -> usize {
        self.pipes[pipe].buffered
    }

    /// Whether the reader of `pipe` has closed it, seen from nowhere.
    pub fn is_deaf(&self, pipe: usize) -> bool {
        self.pipes[pipe].deaf.is_some()
    }

    pub fn write(&mut self, chance: &mut Prng, now: Instant, pipe: usize, bytes: &[u8]) {
        if self.pipes[pipe].deaf.is_some() || self.pipes[pipe].ending.is_some() {
            return;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let cut = match self.weather.crumbs && rest.len() > 1 && chance.below(4) == 0 {
                true => 1 + chance.below(rest.len() as u64 - 1) as usize,
                false => rest.len(),
            };
            let delay = self.delay(chance);
            let pipe = &mut self.pipes[pipe];
            let at = pipe.last_at.max(now + delay);
            pipe.last_at = at;
            pipe.pieces.push_back((at, rest[..cut].to_vec()));
            pipe.buffered += cut;
            self.wakes.push((at, pipe.reader));
            rest = &rest[cut..];
        }
    }

    /// The writer is done, or breaks off. A reset overtakes what is on its way, now and then.
    pub fn end(&mut self, chance: &mut Prng, now: Instant, pipe: usize, ending: Ending) {
        let delay = self.delay(chance);
        let swallows = ending == Ending::Reset && chance.below(2) == 0;
        let pipe = &mut self.pipes[pipe];
        if pipe.ending.is_some() || pipe.deaf.is_some() {
            return;
        }
        if swallows {
            while pipe.pieces.back().is_some_and(|(at, _)| *at > now) && pipe.pieces.len() > 1 {
                let (_, lost) = pipe.pieces.pop_back().expect("looked at just now");
                pipe.buffered -= lost.len();
            }
        }
        let at = pipe.last_at.max(now + delay);
        pipe.ending = Some((at, ending));
        self.wakes.push((at, pipe.reader));
    }

    /// One side of a socket goes: what it reads and what it writes.
    pub fn close(
        &mut self,
        chance: &mut Prng,
        now: Instant,
        reads: usize,
        writes: usize,
        ending: Ending,
    ) {
        self.end(chance, now, writes, ending);
        let at = now + self.delay(chance);
        let pipe = &mut self.pipes[reads];
        pipe.deaf.get_or_insert(at);
        pipe.pieces.clear();
        (pipe.buffered, pipe.read) = (0, 0);
        self.wakes.push((at, pipe.writer));
    }

    /// Reads up to `most` bytes that have arrived.
    pub fn read(
        &mut self,
        chance: &mut Prng,
        now: Instant,
        pipe: usize,
        most: usize,
        out: &mut Vec<u8>,
    ) -> Got {
        let cuts = self.weather.crumbs;
        let pipe = &mut self.pipes[pipe];
        let arrived: usize = pipe
            .pieces
            .iter()
            .take_while(|(at, _)| *at <= now)
            .map(|(_, piece)| piece.len())
            .sum();
        let arrived = arrived - if arrived > 0 { pipe.read } else { 0 };
        if arrived == 0 {
            return match pipe.ending {
                Some((at, ending)) if at <= now && pipe.buffered == 0 => Got::End(ending),
                _ => Got::Nothing,
            };
        }
        let mut n = arrived.min(most).min(pipe.crumb);
        if cuts && n > 1 && chance.below(8) == 0 {
            n = 1 + chance.below(n as u64 - 1) as usize;
        }
        let was_full = pipe.buffered >= pipe.room;
        let mut left = n;
        while left > 0 {
            let (_, piece) = pipe.pieces.front().expect("so many have arrived");
            let part = left.min(piece.len() - pipe.read);
            out.extend_from_slice(&piece[pipe.read..pipe.read + part]);
            pipe.read += part;
            left -= part;
            if pipe.read == piece.len() {
                pipe.pieces.pop_front();
                pipe.read = 0;
            }
        }
        pipe.buffered -= n;
        pipe.read_at = now;
        if was_full {
            self.wakes.push((now, pipe.writer));
        }
        Got::Bytes(n)
    }

    /// Since when a reader of it could have seen its end.
    pub fn ended_at(&self, pipe: usize) -> Option<Instant> {
        let pipe = &self.pipes[pipe];
        let (at, _) = pipe.ending.filter(|_| pipe.buffered == 0)?;
        Some(at.max(pipe.read_at))
    }

    /// When a read of it has something to say.
    pub fn readable_at(&self, pipe: usize) -> Instant {
        let pipe = &self.pipes[pipe];
        match (pipe.pieces.front(), pipe.ending) {
            (Some((at, _)), _) => *at,
            (None, Some((at, _))) => at,
            (None, None) => Instant::FAR,
        }
    }

    /// Part of what was just written never left: the writer was cut off in the middle of it.
    pub fn tear(&mut self, pipe: usize, keep: usize) {
        let pipe = &mut self.pipes[pipe];
        while pipe.buffered > keep && !pipe.pieces.is_empty() {
            // What was read stays read.
            let floor = if pipe.pieces.len() == 1 { pipe.read } else { 0 };
            let (_, piece) = match pipe.pieces.back_mut() {
                Some(back) => (back.0, &mut back.1),
                None => return,
            };
            let over = (pipe.buffered - keep).min(piece.len() - floor);
            if over == 0 {
                return;
            }
            piece.truncate(piece.len() - over);
            pipe.buffered -= over;
            if piece.len() == floor {
                pipe.pieces.pop_back();
                if floor > 0 {
                    pipe.read = 0;
                }
            }
        }
    }
}
