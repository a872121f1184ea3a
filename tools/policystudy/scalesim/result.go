package scalesim

import "time"

// Result is the score of one run, from Config.ScoreFrom to the end of the trace.
type Result struct {
	Policy string `json:"policy"`
	Trace  string `json:"trace"`
	// GPUHours is the time of all replicas that started, were ready or drained, in hours of
	// one replica. A replica with several GPUs counts once: multiply.
	GPUHours float64 `json:"gpu_hours"`
	// Started, Cancelled and Stopped count replicas: starts, starts that were called off,
	// and replicas that drained to the end.
	Started   int `json:"started"`
	Cancelled int `json:"cancelled"`
	Stopped   int `json:"stopped"`
	// PeakReplicas is the most that were charged at once.
	PeakReplicas int `json:"peak_replicas"`
	// Decisions counts the calls of the policy, Actions those that changed the wish.
	Decisions int `json:"decisions"`
	Actions   int `json:"actions"`

	// Requests arrived, Begun of them were started, and Finished of those ended. Late ones
	// waited longer than Config.TargetWait, also those that did so at the end of the trace
	// and were never started. Open ones waited at the end, and not yet too long: they are
	// left out of the share.
	Requests int64 `json:"requests"`
	Begun    int64 `json:"begun"`
	Finished int64 `json:"finished"`
	Late     int64 `json:"late"`
	Open     int64 `json:"open"`
	// InTime is the share of requests that were started in time: 1 - Late/(Requests-Open);
	// 1 without requests.
	InTime float64 `json:"in_time"`

	// The waits of requests that were started. Percentiles are exact at 0, and otherwise at
	// most 1 % too high.
	WaitMean time.Duration `json:"wait_mean_ns"`
	WaitP50  time.Duration `json:"wait_p50_ns"`
	WaitP99  time.Duration `json:"wait_p99_ns"`
	WaitP999 time.Duration `json:"wait_p999_ns"`
	WaitMax  time.Duration `json:"wait_max_ns"`

	// BusyHours is the time that slots were in use. Utilization is its share of the slots
	// that were charged; 0 if none was.
	BusyHours   float64 `json:"busy_hours"`
	Utilization float64 `json:"utilization"`
	// WorstEpisode is the most late requests of an episode, by Config.Waits. Five minutes in which no
	// late request arrives end an episode.
	WorstEpisode []int64 `json:"worst_episode,omitempty"`
	// Hours is the course, one entry an hour from Config.ScoreFrom; the last may be short.
	Hours []Hour `json:"hours"`
}

// Hour is one hour of a run.
type Hour struct {
	GPUHours  float64 `json:"gpu_hours"`
	BusyHours float64 `json:"busy_hours"`
	// Requests and Late count by the time of arrival.
	Requests int64 `json:"requests"`
	Late     int64 `json:"late"`
	// LateAfter counts those that waited longer than each of Config.Waits.
	LateAfter []int64 `json:"late_after,omitempty"`
	// Actions counts the changes of the wish.
	Actions int `json:"actions"`
	// Desired, Ready and Waiting are those at the end of the hour.
	Desired int `json:"desired"`
	Ready   int `json:"ready"`
	Waiting int `json:"waiting"`
}
