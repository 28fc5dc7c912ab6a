//! A server that 100 clients ask at once, on tokio. Each client and each connection of the server is a task,
//! and there is one thread: here all run in one program, which could as well be machines.

use adverb::asynchronous::{AsyncConnection, AsyncEndpoint, Tokio};
use adverb::{Context, Result};
use std::net::SocketAddr;
use tokio::task::JoinSet;

const CLIENTS: u64 = 100;
const QUESTIONS: u64 = 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let domain = Context::open_default()?.protection_domain()?;
    let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
    let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 128)?;
    let address = listener.local_address();

    tokio::spawn(async move {
        while let Ok(request) = listener.accept().await {
            tokio::spawn(async move { serve(request.accept(&[]).await?).await });
        }
    });

    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(ask(endpoint.clone(), address, number));
    }
    let mut sum = 0;
    while let Some(answered) = clients.join_next().await {
        sum += answered.expect("a client")?;
    }
    println!("{CLIENTS} clients have asked {} questions: {sum}", CLIENTS * QUESTIONS);
    Ok(())
}

// ANCHOR: serve
/// Answers each number with its square, until the client has gone.
async fn serve(connection: AsyncConnection) -> Result<()> {
    while let Some(question) = connection.receive().await? {
        let number = question.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        connection.send(&(number * number).to_be_bytes()).await?;
    }
    Ok(())
}
// ANCHOR_END: serve

// ANCHOR: ask
/// Asks for squares, and adds them up.
async fn ask(endpoint: AsyncEndpoint, server: SocketAddr, number: u64) -> Result<u64> {
    let connection = endpoint.connect(server, &[]).await?;
    let mut sum = 0;
    for question in 0..QUESTIONS {
        connection.send(&(number * QUESTIONS + question).to_be_bytes()).await?;
        let Some(answer) = connection.receive().await? else { break };
        sum += answer.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    }
    Ok(sum)
}
// ANCHOR_END: ask
