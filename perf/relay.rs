//! A bare relay, the floor under every router: for each client connection one of its own upstream, bytes pumped both ways, nothing
//! understood. On the runtime and the drivers that Narwhal has, so what Narwhal costs more is what it does, not what it stands on.
//!
//! One buffer a direction, one write a read. The end of one side ends the sending side of the other. Invariant: bytes held per
//! direction ≤ the buffer.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use narwhal::runtime::boot::{self, Driver, DriverChoice};
#[cfg(feature = "rt-glommio")]
use narwhal::runtime::glommio::Glommio;
use narwhal::runtime::io::{ReadHalf, Rt, WriteHalf};
use narwhal::runtime::monoio::Monoio;

#[path = "driver.rs"]
mod driver;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const DRIVERS: &str = if cfg!(feature = "rt-glommio") {
    "io_uring|epoll|glommio"
} else {
    "io_uring|epoll"
};

#[derive(Debug, Parser)]
struct Args {
    #[arg(long, value_name = "A:P")]
    listen: SocketAddr,
    /// Where the connections go.
    #[arg(long, value_name = "A:P")]
    upstream: SocketAddr,
    #[arg(long, value_name = DRIVERS, default_value = "io_uring")]
    driver: String,
    /// Of each direction.
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 10)]
    buffer_bytes: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match choose(&args.driver).and_then(|driver| run(driver, args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("relay: {error}");
            ExitCode::from(2)
        }
    }
}

fn choose(name: &str) -> std::io::Result<Driver> {
    match name {
        "glommio" => boot::choose_driver(DriverChoice::Glommio).map(|(driver, _)| driver),
        name => driver::choose(name),
    }
}

fn run(driver: Driver, args: Args) -> std::io::Result<()> {
    let mut runtime = boot::runtime(driver)?;
    match driver {
        Driver::IoUring | Driver::Epoll => runtime.block_on(serve::<Monoio>(args)),
        #[cfg(feature = "rt-glommio")]
        Driver::Glommio => runtime.block_on(serve::<Glommio>(args)),
    }
}

async fn serve<R: Rt>(args: Args) -> std::io::Result<()> {
    let listener = R::listen(args.listen, false, 4_096)?;
    println!("relay: listening on {}", R::local_addr(&listener)?);
    loop {
        let Ok((reader, writer, _)) = R::accept(&listener).await else {
            continue;
        };
        let (upstream, bytes) = (args.upstream, args.buffer_bytes);
        R::spawn(async move {
            // A client whose upstream is not there is closed.
            if let Ok((from, to)) = R::connect(upstream).await {
                R::spawn(pump(reader, to, bytes));
                pump(from, writer, bytes).await;
            }
        });
    }
}

/// One direction, until either side of it ends.
async fn pump(mut reader: impl ReadHalf, mut writer: impl WriteHalf, bytes: usize) {
    let mut buf = Vec::with_capacity(bytes);
    loop {
        let (got, sent);
        (got, buf, reader) = reader.read(buf).await;
        if !matches!(got, Ok(n) if n > 0) {
            break;
        }
        (sent, buf, writer) = writer.write_all(buf, 0).await;
        if sent.is_err() {
            reader.hangup().reset();
            break;
        }
        buf.clear();
    }
    // The other direction may still have something to say.
    let _ = writer.shutdown();
}
