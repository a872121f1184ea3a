// Package study compares scaling policies on traces.
//
// Every policy has a grid of settings. Train runs the grid on the first half of a trace only.
// Test runs, on the whole trace, the settings that training chose, and scores the second half.
// One run of a peer counts the late requests of every target wait; predictive, which aims at a
// wait, has a run for each. Results are kept by day, in results.csv, so that intervals are of
// days and a day can be left out. A run that is in the file is not made again.
package study
