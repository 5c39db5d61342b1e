//! Other people's servers for tests: object stores and Redis, real ones started on free ports,
//! doubles that can be told to misbehave, and a proxy that injects faults. All of them live on threads or
//! processes of their own, so that a test may block, pause its clock or panic; all end on drop.

mod clock;
mod double;
mod op;
mod proxy;
mod recorder;
mod serve;
mod servers;
mod xml;

pub use double::{Double, Flaw, GcsDouble, S3Double, Upload};
pub use op::{Counts, Op};
pub use proxy::{Dates, Fault, Plan, Proxy};
pub use recorder::{Exchange, Recorder};
pub use servers::{Azurite, Etcd, Moto, Postgres, Redis, ServerFiles, free_port};
