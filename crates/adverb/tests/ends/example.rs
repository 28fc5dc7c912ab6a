// Two ends of a connection, for examples of the documentation: a hidden line includes this file, among items
// of the example's own. These may have names of this module.

use pair::*;

mod pair {
    pub const SOON: std::time::Duration = std::time::Duration::from_secs(10);

    /// A queue pair whose sends and receives complete on queues of their own.
    pub fn queue_pair(domain: &adverb::ProtectionDomain) -> adverb::Result<adverb::QueuePair> {
        let completions = [domain.context().completion_queue(64)?, domain.context().completion_queue(64)?];
        let options = adverb::QueuePairOptions::new(&completions[0]);
        domain.queue_pair(adverb::QueuePairOptions { receive_queue: completions[1].clone(), ..options })
    }

    /// Connects two queue pairs of this process. `b` listens, and tells `a` the private data.
    pub fn connected(
        a: adverb::QueuePair,
        b: adverb::QueuePair,
        data: &[u8],
    ) -> adverb::Result<(adverb::Connection, adverb::Connection)> {
        let listener = adverb::Listener::bind(a.domain().context(), "127.0.0.1:0".parse().unwrap(), 1)?;
        let address = listener.local_address();
        std::thread::scope(|scope| {
            let accepted =
                scope.spawn(|| -> adverb::Result<_> { Ok(listener.accept(SOON)?.accept(b, data, SOON)?) });
            let client = a.connect(address, b"", SOON)?;
            Ok((client, accepted.join().unwrap()?))
        })
    }

    /// A client, and a server with four receives of 64 bytes, each with a protection domain of its own.
    pub fn ends() -> adverb::Result<(adverb::Connection, adverb::Connection)> {
        let context = adverb::Context::open_default()?;
        let (client, server) =
            (queue_pair(&context.protection_domain()?)?, queue_pair(&context.protection_domain()?)?);
        for (id, buffer) in (0..).zip(server.domain().buffers(4, 64)?) {
            server.post_receive(id, buffer)?;
        }
        connected(client, server, b"")
    }

    /// A client and a server as `ends` has them. The server offers a region of 4096 bytes with these rights,
    /// and the client has its token.
    pub fn ends_with_region(
        rights: adverb::Rights,
    ) -> adverb::Result<(adverb::Connection, adverb::Connection, adverb::MemoryRegion, adverb::RemoteMemory)>
    {
        let (client, server) = ends()?;
        let region = server.domain().memory_region(4096, rights)?;
        let token = region.remote();
        Ok((client, server, region, token))
    }
}
