//! The rows for the client's side, each whole, byte by byte, cut at every offset and behind a good request: on the machine alone,
//! and on sockets with every driver.

use std::time::{Duration, Instant};

use super::answers::{self, Got, PROBE, Reading};
use super::client::{Client, PATIENCE};
use super::machine::{Machine, Reply, fleet_file};
use super::rows::{End, Row, Then, Want, When, client_rows};
use super::world::{Fleet, Setup, World, in_each};

/// The request in front of a row.
const GOOD: &[u8] = b"GET /v1/models HTTP/1.1\r\nHost: good\r\n\
    Authorization: bearer strict-0123456789abcdef\r\n\r\n";

/// Rows up to here are cut at every offset.
const CUT_BYTES_MAX: usize = 700;

/// Rows over this are not cut to single bytes.
const LONG_BYTES: usize = 20_000;

/// Rows over this come in pieces of some bytes where others come byte by byte on sockets.
const SINGLE_BYTES_MAX: usize = 1500;

/// How bytes are cut.
#[derive(Clone, Copy, Debug)]
enum Pace {
    Pieces(usize),
    /// In two, there.
    Cut(usize),
}

impl Pace {
    const WHOLE: Pace = Pace::Pieces(usize::MAX);

    fn split(self, bytes: &[u8]) -> Vec<&[u8]> {
        match self {
            Pace::Pieces(n) => bytes.chunks(n.min(bytes.len()).max(1)).collect(),
            Pace::Cut(at) => {
                let (one, two) = bytes.split_at(at.min(bytes.len()));
                vec![one, two]
            }
        }
    }
}

/// What a stage sends: the first one behind good requests, the last one with the probe behind it.
fn stage_bytes(row: &Row, stage: usize, before: usize) -> Vec<u8> {
    let mut bytes = if stage == 0 {
        GOOD.repeat(before)
    } else {
        Vec::new()
    };
    bytes.extend_from_slice(&row.stages[stage].send);
    if stage + 1 == row.stages.len() && row.end != End::Wait && !is_late(row) {
        bytes.extend_from_slice(PROBE);
    }
    bytes
}

fn is_late(row: &Row) -> bool {
    row.stages
        .iter()
        .any(|stage| stage.want.contains(&Want::Late))
}

// proves R-HTTP-1, R-HTTP-2, R-HTTP-3, R-HTTP-8
#[test]
fn rows_hold_on_the_machine_in_every_cut() {
    let rows = client_rows();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let faults: Vec<String> = std::thread::scope(|scope| {
        let part = |first: usize| {
            let rows = &rows;
            scope.spawn(move || {
                let fleet = fleet_file("both", 2);
                let mut open = Machine::new(&fleet, Box::new(served));
                let mut locked = Machine::locked(&fleet, Box::new(served));
                let mine = rows.iter().skip(first).step_by(threads);
                let faults = mine.filter_map(|row| match row.when {
                    When::Locked => in_every_cut(&mut locked, row).err(),
                    _ => in_every_cut(&mut open, row).err(),
                });
                faults.collect::<Vec<_>>()
            })
        };
        let parts: Vec<_> = (0..threads).map(part).collect();
        let join = parts
            .into_iter()
            .map(|part| part.join().expect("a part of the rows"));
        join.flatten().collect()
    });
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// One fault a row is enough.
fn in_every_cut(machine: &mut Machine, row: &Row) -> Result<(), String> {
    let small = if row.bytes() > LONG_BYTES { 61 } else { 1 };
    for before in [0, 1] {
        for piece in [usize::MAX, 1, 2, 3, 7, 61, 1021]
            .into_iter()
            .filter(|piece| *piece >= small)
        {
            on_machine(machine, row, Pace::Pieces(piece), before)?;
        }
    }
    if row.bytes() <= CUT_BYTES_MAX {
        for cut in 1..row.bytes() {
            on_machine(machine, row, Pace::Cut(cut), 0)?;
        }
    }
    Ok(())
}

fn on_machine(machine: &mut Machine, row: &Row, pace: Pace, before: usize) -> Result<(), String> {
    machine.reconnect();
    machine.stand(row.when);
    let told = |what: String| {
        format!(
            "{} {} ({pace:?}, {before} before): {what}",
            row.place, row.name
        )
    };
    let mut reading = Reading::new(row, before);
    for stage in 0..row.stages.len() {
        for piece in pace.split(&stage_bytes(row, stage, before)) {
            machine.send(piece, usize::MAX);
        }
        loop {
            match reading.go_on(&machine.got, machine.over).map_err(told)? {
                Got::Stage => break,
                Got::Late => machine.late(),
                Got::Less => {
                    let text = String::from_utf8_lossy(reading.rest(&machine.got)).into_owned();
                    let over = machine.over;
                    return Err(told(format!(
                        "stage {stage}: over {over}, then only {text:?}"
                    )));
                }
            }
        }
        reading.next_stage();
    }
    if is_late(row) && row.end == End::Keep {
        machine.send(PROBE, usize::MAX);
    }
    reading
        .check_end(&machine.got, machine.over)
        .map_err(told)?;
    match row.end {
        End::Keep => match answers::is_probed(reading.rest(&machine.got)).map_err(told)? {
            Some(()) => Ok(()),
            None => Err(told("the probe is not answered".to_owned())),
        },
        _ if reading.rest(&machine.got).is_empty() => Ok(()),
        _ => Err(told("an answer too many".to_owned())),
    }
}

/// An engine that serves.
fn served(_: narwhal::base::units::Leg, _: &[u8]) -> Reply {
    Reply {
        pieces: vec![super::engine_side::default_stream()],
        then: Then::Open,
    }
}

// proves R-HTTP-1, R-HTTP-2, R-HTTP-3, R-HTTP-8, R-SHD-3
#[test]
fn rows_hold_on_sockets() {
    let rows: Vec<Row> = client_rows()
        .into_iter()
        .filter(Row::is_for_sockets)
        .collect();
    in_each(&single_shards(), |setup| {
        let fleet = Fleet::new(&["both"])
            .with("runtime", "max_header_bytes", 4096)
            .with("runtime", "max_headers", 32)
            .with("serving", "max_request_bytes", 2048);
        let world = World::start(setup, &fleet);
        let mut faults = Vec::new();
        for row in &rows {
            let small = if row.bytes() > SINGLE_BYTES_MAX {
                61
            } else {
                1
            };
            for (pace, before) in [(Pace::WHOLE, 0), (Pace::Pieces(small), 0), (Pace::WHOLE, 1)] {
                if let Err(what) = on_socket(&world, row, pace, before) {
                    faults.push(format!(
                        "{} {} ({pace:?}, {before} before): {what}",
                        row.place, row.name
                    ));
                    break;
                }
            }
        }
        assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
        world.at_rest();
    });
}

/// Every driver, with one shard: a connection is one shard's.
pub fn single_shards() -> Vec<Setup> {
    Setup::all()
        .into_iter()
        .filter(|setup| setup.shards == 1)
        .collect()
}

fn on_socket(world: &World, row: &Row, pace: Pace, before: usize) -> Result<(), String> {
    let mut client = world.connect();
    let mut reading = Reading::new(row, before);
    for stage in 0..row.stages.len() {
        for piece in pace.split(&stage_bytes(row, stage, before)) {
            client.send(piece);
        }
        until(&mut client, |client| {
            match reading.go_on(&client.buf, client.eof)? {
                Got::Less => Ok(None),
                _ => Ok(Some(())),
            }
        })?;
        reading.next_stage();
    }
    if row.end == End::Keep {
        until(&mut client, |client| {
            answers::is_probed(reading.rest(&client.buf))
        })?;
    } else if !client.ends_within(PATIENCE) {
        return Err("it is not closed".to_owned());
    }
    reading.check_end(&client.buf, client.eof)
}

/// Reads until it is there.
fn until(
    client: &mut Client,
    mut is_there: impl FnMut(&Client) -> Result<Option<()>, String>,
) -> Result<(), String> {
    let patience = Instant::now() + PATIENCE;
    loop {
        if is_there(client)?.is_some() {
            return Ok(());
        }
        let left = patience.saturating_duration_since(Instant::now());
        if client.eof || left.is_zero() {
            let how = if client.eof { "closed" } else { "silent" };
            let text = String::from_utf8_lossy(&client.buf).into_owned();
            return Err(format!("{how} after {text:?}"));
        }
        client.more(left.min(Duration::from_secs(1)));
    }
}
