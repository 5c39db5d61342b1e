//! Tests of the adapter that need its insides.


mod conformance;
mod crash;
mod faults;
mod tree;
