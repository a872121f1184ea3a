package scalesim

import "time"

// Policy decides how many replicas it wants. A policy has a memory of its own and belongs
// to one run: make a new one for each.
type Policy interface {
	// Name is how the policy is called in results and pictures.
	Name() string
	// Decide gives the wanted number of replicas. It is bounded by Config.Min and Max. The
	// observation, its slices included, is only valid during the call.
	Decide(*Observation) int
}

// Paced is a Policy with an interval of its own in place of Config.Interval, as Replicate's
// second or the five minutes of Workers AI.
type Paced interface {
	Policy
	// Interval is asked once, before the run.
	Interval() time.Duration
}

// Observation is what a policy knows at a decision. Counts since the start and integrals
// only grow, so that a policy takes differences over whatever window it likes.
type Observation struct {
	// Now is the time since the start of the trace.
	Now time.Duration `json:"now_ns"`
	// Interval is the time between decisions.
	Interval time.Duration `json:"interval_ns"`
	// Desired is the last decision, after bounds; Config.Initial before the first.
	Desired int `json:"desired"`
	Min     int `json:"min"`
	Max     int `json:"max"`
	// Ready, Starting and Draining count the replicas that are charged now.
	Ready    int `json:"ready"`
	Starting int `json:"starting"`
	Draining int `json:"draining"`
	// Slots is how many requests one replica runs at once.
	Slots int `json:"slots"`
	// Running and Waiting count requests; those of draining replicas run too.
	Running int `json:"running"`
	Waiting int `json:"waiting"`
	// PeakRunning and PeakWaiting are the highest of the peak window.
	PeakRunning int `json:"peak_running"`
	PeakWaiting int `json:"peak_waiting"`
	// OldestWait is how long the head of the queue has waited; 0 without a queue.
	OldestWait time.Duration `json:"oldest_wait_ns"`
	// Arrived, Begun and Finished count requests since the start.
	Arrived  int64 `json:"arrived"`
	Begun    int64 `json:"begun"`
	Finished int64 `json:"finished"`
	// Late counts those of Begun that waited longer than the target wait.
	Late int64 `json:"late"`
	// BusySeconds is the time that slots were in use, WaitingSeconds the time that requests
	// waited (also those that wait still), since the start. Their sum divided by the time
	// is the mean concurrency that Knative scales on.
	BusySeconds    float64 `json:"busy_seconds"`
	WaitingSeconds float64 `json:"waiting_seconds"`
	// ServedSeconds is the service time of the finished requests: divided by Finished it is
	// their mean.
	ServedSeconds float64 `json:"served_seconds"`
	// ColdStart is what a cold start takes in the mean, and TargetWait what a request may
	// wait: both are known to an operator.
	ColdStart  time.Duration `json:"cold_start_ns"`
	TargetWait time.Duration `json:"target_wait_ns"`
	// PerReplica has the ready replicas, those that are ready longest first.
	PerReplica []ReplicaView `json:"per_replica"`
}

// ReplicaView is what the metrics of one ready replica say.
type ReplicaView struct {
	// ID counts the replicas of a run from 0, in the order of their start.
	ID int `json:"id"`
	// Age is the time since it became ready.
	Age     time.Duration `json:"age_ns"`
	Running int           `json:"running"`
	// KV is the share of its KV cache that is used, 0 to 1 (see Config.KVTokens).
	KV float64 `json:"kv"`
	// Waiting is its part of the queue, which is spread evenly over the ready replicas: the
	// queue is the gateway's, and this is what an engine would show behind a balancer.
	Waiting int `json:"waiting"`
	// PeakKV and PeakWaiting are the highest of the peak window, as the seed's
	// max_over_time(...[1m]).
	PeakKV      float64 `json:"peak_kv"`
	PeakWaiting int     `json:"peak_waiting"`
}
