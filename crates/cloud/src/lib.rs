//! Object stores for tests: doubles that can be told to misbehave, real servers started on free
//! ports, and a proxy that injects faults in front of either. All of them live on threads or
//! processes of their own, so that a test may block, pause its clock or panic; all end on drop.

mod clock;
mod double;
mod op;
mod proxy;
mod serve;
mod servers;
mod xml;

pub use double::{Double, Flaw, GcsDouble, S3Double, Upload};
pub use op::{Counts, Op};
pub use proxy::{Fault, Plan, Proxy};
pub use servers::{Azurite, Moto};
