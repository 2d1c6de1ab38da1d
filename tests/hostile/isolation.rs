//! No byte of one exchange shows in another: thousands at once, over connections that are used again, retries, clients that leave at any
//! moment and pools that are raced for. Clients and engines both look for what is not theirs.

use std::time::Duration;

use super::ask::Outcome;
use super::crowd::{Crowd, crowd};
use super::echo::Echo;
use super::world::{Fleet, Setup, World, number};

/// All together, unless `NARWHAL_ISOLATION_EXCHANGES` says otherwise.
const EXCHANGES: u64 = 2_800;

const CROWD: Crowd = Crowd {
    clients: 200,
    seed: 11,
    tokens_max: 30,
    leave: 15,
    dawdle: 10,
    pipeline: 12,
    patience: Duration::from_secs(60),
    ids: true,
};

// proves R-HTTP-4, R-HTTP-5, R-ADM-10, R-FLT-4, R-LEG-4
#[test]
fn no_byte_of_one_exchange_shows_in_another() {
    let told = std::env::var("NARWHAL_ISOLATION_EXCHANGES").ok();
    let all = told.map_or(EXCHANGES, |text| text.parse().expect("a number"));
    let setups = Setup::all();
    let each = all / setups.len() as u64;
    for setup in setups {
        let echo = Echo::start(5);
        echo.set_faults(60);
        // One of them serves both legs at once.
        let mut fleet = Fleet::new(&["prefill", "prefill", "decode", "decode", "both"])
            .with("engine", "connector", "nixl")
            .with("serving", "max_attempts", 3);
        fleet.ports = echo.ports.clone();
        let world = World::start(setup, &fleet);
        let tally = crowd(&world, CROWD, |begun| begun < each);
        // Engines that fail three times in a row are told of, and that none is left to try; nothing else goes wrong.
        tally.assert_refusals(setup.driver, &[502, 503, 504]);
        echo.assert_unmixed();
        let state = world.at_rest();
        let served = tally.count(Outcome::Whole);
        println!("{setup:?}: {:?}, {} left", tally.outcomes, tally.left);
        assert!(tally.exchanges >= each, "{setup:?}: {}", tally.exchanges);
        assert!(served > each / 2, "{setup:?}: {:?}", tally.outcomes);
        assert!(number(&state, "/served") >= served, "{setup:?}");
        for pointer in [
            "/cancelled",
            "/serving/retry_attempts",
            "/serving/prefill_attempts",
            "/pools/hits",
        ] {
            assert!(number(&state, pointer) > 0, "{setup:?}: {pointer}");
        }
    }
}
