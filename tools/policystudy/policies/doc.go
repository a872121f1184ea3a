// Package policies makes scalesim policies of what the project ships: the capacity analyzer
// with both of its rules, Kubernetes' HPA, Replicate's backlog scaler, Workers AI's
// utilization rule, and remuda-predictive. Beside those of scalesim/peers they are what the
// policy study compares.
//
// Each is given the same two knobs, so that all are tuned on one grid: Aim, the share of a
// replica's slots that is to be in use, and Hold, for how long a higher wish keeps capacity
// from being removed. A policy that has no hold of its own gets one around it, which only
// helps it: without one it scales down in every lull. Predictive has neither knob: it
// takes the goal, and how steady it is to be.
package policies
