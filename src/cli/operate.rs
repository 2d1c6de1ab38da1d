//! `narwhal drain`, `readmit` and `status`: the admin routes for people. Prints what the router says as a table, or as it said it.
//!
//! Exit codes: 0 done, 1 the router refused or cannot be reached, 2 a wrong command line.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::Failure;
use super::flags::{self, Admin};
use crate::config::Url;

const LIFECYCLE: &str = "/narwhal/lifecycle";

/// A readmission may take as long as an engine's first token.
const PATIENCE: Duration = Duration::from_secs(900);
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at engines that drain.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const ANSWER_BYTES_MAX: usize = 64 << 20;

pub fn drain(args: flags::Drain) -> Result<(), Failure> {
    let router = Router::of(&args.admin)?;
    let mut wish = wish(&args.engines, args.wave);
    if let Some(seconds) = args.deadline_s {
        wish["deadline_s"] = json!(seconds);
    }
    on_tokio(async {
        let (status, mut said) = router.post(&format!("{LIFECYCLE}/drain"), &wish).await?;
        refused(status, &said)?;
        let ours = |row: &&Value| args.wave || args.engines.iter().any(|iid| row["iid"] == **iid);
        let empty = |said: &Value| {
            rows(said)
                .filter(ours)
                .all(|row| row["state"] != "draining")
        };
        while args.wait && !empty(&said) {
            sleep(LOOK_EVERY).await;
            let (status, now) = router.get(LIFECYCLE).await?;
            refused(status, &now)?;
            said = now;
        }
        let hint = match empty(&said) {
            true => {
                "They may be stopped. Take them back with `narwhal readmit` once they run again."
            }
            false => "`narwhal status` tells when they may be stopped (state ready_to_stop).",
        };
        print(&args.admin, &said, |said| {
            format!("{}\n{hint}\n", engines_table(said))
        });
        Ok(())
    })
}

pub fn readmit(args: flags::Readmit) -> Result<(), Failure> {
    let router = Router::of(&args.admin)?;
    let wish = wish(&args.engines, args.wave);
    on_tokio(async {
        let (status, said) = router.post(&format!("{LIFECYCLE}/readmit"), &wish).await?;
        if said["engines"].is_array() {
            print(&args.admin, &said, checks_table);
            return match status {
                200 => Ok(()),
                _ => Err(Failure::failed("not all of them are readmitted")),
            };
        }
        refused(status, &said)
    })
}

pub fn status(args: flags::Status) -> Result<(), Failure> {
    let router = Router::of(&args.admin)?;
    on_tokio(async {
        let (status, state) = router.get("/narwhal/state").await?;
        refused(status, &state)?;
        let (status, lifecycle) = router.get(LIFECYCLE).await?;
        refused(status, &lifecycle)?;
        let both = json!({"state": state, "lifecycle": lifecycle});
        print(&args.admin, &both, |both| {
            let engines = engines_table(&both["lifecycle"]);
            format!("{}\n{engines}", summary(&both["state"]))
        });
        Ok(())
    })
}

fn wish(engines: &[String], wave: bool) -> Value {
    match wave {
        true => json!({"wave": true}),
        false => json!({"engines": engines}),
    }
}

fn rows(said: &Value) -> impl Iterator<Item = &Value> {
    said["engines"].as_array().into_iter().flatten()
}

fn refused(status: u16, said: &Value) -> Result<(), Failure> {
    if status == 200 {
        return Ok(());
    }
    let why = said["error"]["message"]
        .as_str()
        .unwrap_or("no reason given");
    Err(Failure::failed(format!(
        "the router answered {status}: {why}"
    )))
}

fn print(admin: &Admin, said: &Value, text: impl Fn(&Value) -> String) {
    let text = match admin.json {
        true => format!("{said:#}\n"),
        false => text(said),
    };
    // Whoever closed the pipe has seen enough.
    let _ = io::stdout().write_all(text.as_bytes());
}

// ── tables ──

fn summary(state: &Value) -> String {
    let n = |pointer: &str| state.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let health = &state["health"];
    let up = Duration::from_secs(health["uptime_s"].as_f64().unwrap_or(0.0).max(0.0) as u64);
    let standing = match state["lifecycle"]["reason"].as_str() {
        None => "ready".to_owned(),
        Some(why) => format!("not ready: {why}"),
    };
    let mut text = format!(
        "router {} (narwhal {}), up {up:?}: {standing}\n",
        word(&state["ha"]["router_id"]),
        word(&health["version"]),
    );
    let ends = [
        "served",
        "failed",
        "expired",
        "cancelled",
        "invalid_requests",
    ];
    let _ = write!(
        text,
        "requests: {} in flight of {}, {} waiting; {} offered",
        n("/admission/inflight"),
        n("/admission/limit"),
        n("/admission/queued"),
        n("/offered"),
    );
    for end in ends {
        let _ = write!(
            text,
            ", {} {}",
            n(&format!("/{end}")),
            end.replace('_', " ")
        );
    }
    text.push('\n');
    text
}

fn engines_table(said: &Value) -> String {
    let head = ["ENGINE", "ROLE", "STATE", "RESIDENT", "DEADLINE"].map(str::to_owned);
    let deadline = |row: &Value| match row["deadline_in_s"].as_f64() {
        Some(seconds) => format!("in {seconds:.0} s"),
        None => String::new(),
    };
    let row = |row: &Value| {
        [
            word(&row["iid"]),
            word(&row["role"]),
            word(&row["state"]),
            row["resident"].to_string(),
            deadline(row),
        ]
    };
    table(std::iter::once(head).chain(rows(said).map(row)).collect())
}

fn checks_table(said: &Value) -> String {
    let head = ["ENGINE", "READMITTED", "CHECK", "SAYS"].map(str::to_owned);
    let mut lines = vec![head];
    for row in rows(said) {
        let in_service = if row["readmitted"] == true {
            "yes"
        } else {
            "no"
        };
        for (name, says) in row["checks"].as_object().into_iter().flatten() {
            lines.push([
                word(&row["iid"]),
                in_service.to_owned(),
                name.clone(),
                word(says),
            ]);
        }
    }
    table(lines)
}

/// Columns as wide as their widest word.
fn table<const N: usize>(lines: Vec<[String; N]>) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for line in &lines {
        let mut shown = String::new();
        for (word, width) in line.iter().zip(widths) {
            let _ = write!(shown, "{word:width$}  ");
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    text
}

/// A word of the router's, fit for a terminal.
fn word(value: &Value) -> String {
    let text = value.as_str().unwrap_or("?");
    text.escape_debug().to_string()
}

// ── the router ──

struct Router {
    url: Url,
    key: Option<String>,
}

impl Router {
    fn of(admin: &Admin) -> Result<Router, Failure> {
        let bad = |why| Failure::config(format!("--admin {}: bad url: {why}", admin.admin));
        let url = Url::parse(&admin.admin).map_err(bad)?;
        if url.tls {
            return Err(bad("admin routes are not served over https"));
        }
        let key = admin.admin_key_file.as_deref().map(|path| {
            let read = std::fs::read_to_string(path);
            read.map(|key| key.trim().to_owned()).map_err(|why| {
                Failure::config(format!("--admin-key-file {}: {why}", path.display()))
            })
        });
        Ok(Router {
            url,
            key: key.transpose()?,
        })
    }

    async fn get(&self, path: &str) -> Result<(u16, Value), Failure> {
        self.ask(Method::GET, path, Bytes::new()).await
    }

    async fn post(&self, path: &str, body: &Value) -> Result<(u16, Value), Failure> {
        self.ask(Method::POST, path, body.to_string().into()).await
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<(u16, Value), Failure> {
        let told = |why: String| Failure::failed(format!("{}: {why}", self.url));
        let answer = timeout(PATIENCE, self.exchange(method, path, body)).await;
        let answer = answer.map_err(|_| told("no answer in time".to_owned()))?;
        let (status, body) = answer.map_err(|why| told(why.to_string()))?;
        // What is no JSON is no router of ours, but it may have said why.
        let said = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Ok((status, said))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), Box<dyn std::error::Error + Send + Sync>> {
        let at = (self.url.host.as_str(), self.url.port);
        let stream = timeout(CONNECT_PATIENCE, TcpStream::connect(at)).await??;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url.prefix))
            .header(HOST, self.url.authority())
            .header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body))?;
        let exchange = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX)
                .collect()
                .await?;
            Ok((status, body.to_bytes()))
        };
        tokio::select! {
            done = exchange => done,
            Err(error) = connection => Err(error.into()),
        }
    }
}

fn on_tokio(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    runtime.block_on(work)
}
