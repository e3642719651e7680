mod basic;
mod bits;
mod crash;
mod faults;
mod script;
mod seams;
