//! The driver by its name on the command line, for the examples of the performance suite.

use std::io;

use narwhal::runtime::boot::{self, Driver, DriverChoice};

/// `auto` takes what there is.
pub fn choose(name: &str) -> io::Result<Driver> {
    let choice = match name {
        "auto" => DriverChoice::Auto,
        "io_uring" => DriverChoice::IoUring,
        "epoll" => DriverChoice::Epoll,
        other => {
            let text = format!("driver `{other}`: io_uring, epoll or auto");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    };
    boot::choose_driver(choice).map(|(driver, _)| driver)
}
