//! The program from a user's view.

mod as_measured;
mod book;
mod calibrate;
mod captures;
mod compare;
mod first_minute;
mod lab;
mod lab_handovers;
mod measured;
mod meter;
mod naive;
mod ns3;
mod orbit;
mod pages;
mod records;
mod reference;
mod reference_kernel;
mod report;
mod reproduce;
mod sim;
mod truth;
mod tunnel;
