// Package study compares scaling policies on traces: every policy sees the
// same requests, each is tuned on the same grid on the first half of a trace and scored on
// the second, under several seeds and cold starts.
//
// What it does, for each trace:
//
//  1. With each of the first TuneSeeds seeds, every setting of every grid runs on the first
//     half ("tune"), and on the second, having lived through the first ("grid"): every
//     setting, or those that halving each line of the grid asks for (Config.Bisect).
//  2. A policy's tuned setting is the cheapest that reaches the goal on the first half in
//     the mean. Its hindsight settings are the Around cheapest that reach it on the second,
//     and the Around dearest below: what the best tuning could have found.
//  3. These run on the second half with every seed ("score").
//
// Every run is one line of a CSV file, written as soon as it is over. A study that was cut
// off goes on where it was, and parts that ran apart (by cold start, target wait, seeds or
// policies) are put together by Report from all results*.csv of the folder.
//
// Every file says for which target wait it is: how long a request may wait and still count
// as started in time. Runs with different target waits are never compared.
package study
