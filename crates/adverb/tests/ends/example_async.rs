// Two async ends of a connection, for examples of the documentation: a hidden line includes this file, among
// items of the example's own.

type Ends = (adverb::asynchronous::AsyncConnection, adverb::asynchronous::AsyncConnection);

/// Runs an example on tokio, with a client and a server. The server's end is where the client's requests go.
fn with_ends<E: Future<Output = adverb::Result<()>>>(example: impl FnOnce(Ends) -> E) -> adverb::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let domain = adverb::Context::open_default()?.protection_domain()?;
        let runtime = adverb::asynchronous::Tokio::current();
        let endpoint = adverb::asynchronous::AsyncEndpoint::new(&domain, runtime);
        let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 16)?;
        let address = listener.local_address();
        let server =
            tokio::spawn(async move { Ok::<_, adverb::Error>(listener.accept().await?.accept(&[]).await?) });
        let client = endpoint.connect(address, &[]).await?;
        let server = server.await.unwrap()?;
        let soon = std::time::Duration::from_secs(30);
        tokio::time::timeout(soon, example((client, server))).await.expect("an example ends")
    })
}
