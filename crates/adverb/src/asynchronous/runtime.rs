//! The two functions that the futures need of a runtime, and the runtimes that this crate knows.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A task that a [`Runtime`] is to run.
///
/// ```
/// use adverb::asynchronous::Task;
/// use std::sync::mpsc::channel;
///
/// /// Runs a task in a thread of its own.
/// fn spawn(task: Task) {
///     std::thread::spawn(|| smol::block_on(task));
/// }
///
/// let (sender, receiver) = channel();
/// spawn(Box::pin(async move { sender.send("done").unwrap() }));
/// assert_eq!(receiver.recv(), Ok("done"));
/// ```
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A runtime of async programs. This crate has those of tokio (feature `tokio`) and smol (feature `smol`). A
/// program with another runtime writes the two functions itself.
///
/// # The end of a runtime
///
/// Endpoints, listeners, connections, queue pairs of datagrams and shared receive queues keep the runtime.
/// Their tasks do not, though these lie in the runtime. So a runtime of the program's own is dropped with the
/// last of these objects, if its [watches](Watch) do not keep it. A task of the program that owns a
/// connection, and that lies in this runtime, keeps it until the task ends.
///
/// A runtime that ends drops its tasks. If a connection is still used then, its operations end with
/// ECANCELED, also those that wait. Requests in flight keep their memory until the drop of the connection.
///
/// ```
/// use adverb::asynchronous::{Runtime, Task, Watch};
/// use std::io;
/// use std::os::fd::OwnedFd;
///
/// /// A runtime that logs each watch, and hands it to another one.
/// struct Watched<R>(R);
///
/// impl<R: Runtime> Runtime for Watched<R> {
///     fn watch(&self, descriptor: OwnedFd) -> io::Result<Box<dyn Watch>> {
///         println!("watching {descriptor:?}");
///         self.0.watch(descriptor)
///     }
///
///     fn spawn(&self, task: Task) {
///         self.0.spawn(task);
///     }
/// }
/// ```
pub trait Runtime: Send + Sync + 'static {
    /// Watches `descriptor` for the time that the result lives.
    ///
    /// ```
    /// use adverb::asynchronous::{Runtime, Smol};
    /// use std::future::poll_fn;
    /// use std::io::Write;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let (reader, mut writer) = std::io::pipe()?;
    /// // For a test of a runtime: the end of a pipe is readable when there are bytes in it.
    /// let mut watch = Smol.watch(reader.into())?;
    /// writer.write_all(b"some")?;
    /// assert!(smol::block_on(poll_fn(|context| watch.poll_readable(context))).is_ok());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the system, such as EMFILE.
    fn watch(&self, descriptor: OwnedFd) -> io::Result<Box<dyn Watch>>;

    /// Runs `task` to its end, beside the caller. There is one such task for each connection, queue pair of
    /// datagrams and shared receive queue, and it ends with that object. A runtime that cannot run it drops
    /// it.
    ///
    /// ```
    /// use adverb::asynchronous::{Runtime, Smol};
    /// use std::sync::mpsc::channel;
    ///
    /// // For a test of a runtime: the task runs while the caller waits.
    /// let (sender, receiver) = channel();
    /// Smol.spawn(Box::pin(async move { sender.send("done").unwrap() }));
    /// assert_eq!(receiver.recv(), Ok("done"));
    /// ```
    fn spawn(&self, task: Task);
}

/// A descriptor that a [`Runtime`] watches.
///
/// ```
/// use adverb::asynchronous::Watch;
/// use std::io;
/// use std::task::{Context, Poll};
///
/// /// For a test of a runtime: it counts how often a descriptor was readable.
/// struct Counted<W>(W, u32);
///
/// impl<W: Watch> Watch for Counted<W> {
///     fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
///         let readable = self.0.poll_readable(context);
///         self.1 += u32::from(readable.is_ready());
///         readable
///     }
/// }
/// # struct Readable;
/// # impl Watch for Readable {
/// #     fn poll_readable(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
/// #         Poll::Ready(Ok(()))
/// #     }
/// # }
/// # let watch = Readable;
///
/// let mut watch = Counted(watch, 0);
/// smol::block_on(std::future::poll_fn(|context| watch.poll_readable(context))).unwrap();
/// assert_eq!(watch.1, 1);
/// ```
pub trait Watch: Send + Sync {
    /// Ready if the descriptor has become readable since this function was last ready. It may be ready
    /// without need.
    ///
    /// Otherwise the task of `context` is woken as soon as the descriptor is readable. One task at a time
    /// waits.
    ///
    /// After the end of the runtime, the task is woken, and the function fails. Otherwise a task of another
    /// runtime would wait for ever.
    ///
    /// ```
    /// use adverb::asynchronous::{Runtime, Smol};
    /// use std::io::Write;
    /// use std::task::{Context, Waker};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let (reader, mut writer) = std::io::pipe()?;
    /// let mut watch = Smol.watch(reader.into())?;
    /// // One look, by a task that is never woken:
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(watch.poll_readable(&mut context).is_pending());
    /// writer.write_all(b"some")?;
    /// let mut ready = std::future::poll_fn(|context| watch.poll_readable(context));
    /// assert!(smol::block_on(&mut ready).is_ok());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the runtime, such as its end.
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// Waits until the descriptor is readable.
pub(super) async fn readable(watch: &mut dyn Watch) -> io::Result<()> {
    std::future::poll_fn(|context| watch.poll_readable(context)).await
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use super::{Runtime, Task, Watch};
    use std::io;
    use std::os::fd::OwnedFd;
    use std::task::{Context, Poll, ready};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;
    use tokio::runtime::Handle;

    /// The runtime of tokio. It needs tokio's I/O driver: `enable_io` or `enable_all` of its builder, as
    /// `#[tokio::main]` does.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let domain = adverb::Context::open_default()?.protection_domain()?;
    /// // Outside async code, by the handle of a runtime that the program has made:
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    /// let endpoint = AsyncEndpoint::new(&domain, Tokio::from(runtime.handle().clone()));
    /// let listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 16)?;
    /// assert_ne!(listener.local_address().port(), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Clone, Debug)]
    pub struct Tokio(Handle);

    impl Tokio {
        /// The runtime in which the caller runs.
        ///
        /// ```
        /// use adverb::asynchronous::{AsyncEndpoint, Tokio};
        ///
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> adverb::Result<()> {
        /// # let domain = adverb::Context::open_default()?.protection_domain()?;
        /// // Inside async code: connections have the runtime of the task that makes them.
        /// let endpoint = AsyncEndpoint::new(&domain, Tokio::current());
        /// assert!(endpoint.listen(([127, 0, 0, 1], 0).into(), 16).is_ok());
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Panics
        /// Outside a runtime of tokio.
        #[track_caller]
        pub fn current() -> Self {
            Self(Handle::current())
        }
    }

    impl From<Handle> for Tokio {
        fn from(handle: Handle) -> Self {
            Self(handle)
        }
    }

    impl Runtime for Tokio {
        fn watch(&self, descriptor: OwnedFd) -> io::Result<Box<dyn Watch>> {
            let _inside = self.0.enter();
            // SAFETY: an `OwnedFd` has one descriptor for its whole life, and the `AsyncFd` owns it until its
            // own end.
            let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
            Ok(Box::new(watched?))
        }

        fn spawn(&self, task: Task) {
            self.0.spawn(task);
        }
    }

    impl Watch for AsyncFd<OwnedFd> {
        fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            // The woken task reads all events before it looks again, so the next event is a new edge.
            ready!(self.poll_read_ready(context))?.clear_ready();
            Poll::Ready(Ok(()))
        }
    }
}

#[cfg(feature = "tokio")]
pub use with_tokio::Tokio;

#[cfg(feature = "smol")]
mod with_smol {
    use super::{Runtime, Task, Watch};
    use smol::Async;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::task::{Context, Poll};

    /// The runtime of smol: its global executor.
    ///
    /// ```
    /// use adverb::asynchronous::{AsyncEndpoint, Smol};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// let domain = adverb::Context::open_default()?.protection_domain()?;
    /// let endpoint = AsyncEndpoint::new(&domain, Smol);
    /// smol::block_on(async {
    ///     let mut listener = endpoint.listen(([127, 0, 0, 1], 0).into(), 16)?;
    ///     let address = listener.local_address();
    ///     let server = smol::spawn(async move {
    ///         let connection = listener.accept().await?.accept(&[]).await?;
    ///         Ok::<_, adverb::Error>(connection)
    ///     });
    ///     let client = endpoint.connect(address, &[]).await?;
    ///     client.send(b"hello").await?;
    ///     let message = server.await?.receive().await?.expect("the client is there");
    ///     assert_eq!(&message[..], b"hello");
    ///     Ok::<_, adverb::Error>(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Smol;

    impl Runtime for Smol {
        fn watch(&self, descriptor: OwnedFd) -> io::Result<Box<dyn Watch>> {
            Ok(Box::new(Async::new(descriptor)?))
        }

        fn spawn(&self, task: Task) {
            smol::spawn(task).detach();
        }
    }

    impl Watch for Async<OwnedFd> {
        fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Async::poll_readable(self, context)
        }
    }
}

#[cfg(feature = "smol")]
pub use with_smol::Smol;
