//! Messages there and back over an async connection.

use adverb::asynchronous::AsyncConnection;

/// Sends each message back, until the peer has gone.
pub(crate) async fn echo(connection: &AsyncConnection) {
    while let Some(message) = connection.receive().await.unwrap() {
        if connection.send(&message[..]).await.is_err() {
            return;
        }
    }
}

/// Sends `rounds` messages one after the other, each of which comes back.
pub(crate) async fn ping_pong(connection: &AsyncConnection, rounds: u32) {
    for round in 0..rounds {
        connection.send(&round.to_be_bytes()).await.unwrap();
        let answer = connection.receive().await.unwrap().expect("an answer");
        assert_eq!(&answer[..], round.to_be_bytes());
    }
}
