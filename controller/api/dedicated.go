package api

import (
	"context"
	"net/http"
	"time"
)

// Dedicated is the set of models that are dedicated for now, beside those whose files say
// so: their replicas are never evicted under pressure.
type Dedicated struct {
	// Models has how many replicas each should have at least, by name; empty where there is no
	// set.
	Models map[string]int
	// Source is operator, or schedule and the window's name, as "schedule:office"; empty where
	// no set was ever made.
	Source string `json:",omitempty"`
	// Since is when it was made.
	Since time.Time `json:",omitzero"`
	// Window is the schedule's now, Until when the next has its turn; both empty where there
	// is no schedule, and Until where no other comes within 400 days.
	Window string    `json:",omitempty"`
	Until  time.Time `json:",omitzero"`

	ModifyIndex uint64
}

// DedicatedRequest makes a new set. It replaces the one before: models that are not in it
// any more return to their scale.
type DedicatedRequest struct {
	// Models has how many replicas each should have at least, from 1 to its max.
	Models map[string]int
}

// DedicatedSchedule is the calendar that changes the dedicated set by the time of day.
type DedicatedSchedule struct {
	// File is its text, empty where there is none.
	File string
	// Timezone is the calendar's. Window has its turn now, until Until, which is zero where
	// nothing changes within 400 days; Models is its set.
	Timezone string         `json:",omitempty"`
	Window   string         `json:",omitempty"`
	Until    time.Time      `json:",omitzero"`
	Models   map[string]int `json:",omitempty"`

	ModifyIndex uint64
}

// ScheduleRequest sets the calendar.
type ScheduleRequest struct {
	// File is the calendar (HCL), Filename is for messages.
	File     string
	Filename string `json:",omitempty"`
}

// Dedicated returns the dedicated set.
func (c *Client) Dedicated(ctx context.Context, q QueryOptions) (Dedicated, QueryMeta, error) {
	return read[Dedicated](ctx, c, "/v1/dedicated", nil, q)
}

// SetDedicated replaces the dedicated set. With a schedule it holds until its next change.
func (c *Client) SetDedicated(ctx context.Context, r DedicatedRequest) (Dedicated, error) {
	return write[Dedicated](ctx, c, http.MethodPut, "/v1/dedicated", nil, r)
}

// ClearDedicated takes the dedicated set away. With a schedule that holds until its next
// change.
func (c *Client) ClearDedicated(ctx context.Context) (Dedicated, error) {
	return write[Dedicated](ctx, c, http.MethodDelete, "/v1/dedicated", nil, nil)
}

// DedicatedSchedule returns the calendar.
func (c *Client) DedicatedSchedule(ctx context.Context, q QueryOptions) (DedicatedSchedule, QueryMeta, error) {
	return read[DedicatedSchedule](ctx, c, "/v1/dedicated/schedule", nil, q)
}

// SetDedicatedSchedule sets the calendar.
func (c *Client) SetDedicatedSchedule(ctx context.Context, r ScheduleRequest) (DedicatedSchedule, error) {
	return write[DedicatedSchedule](ctx, c, http.MethodPut, "/v1/dedicated/schedule", nil, r)
}

// DeleteDedicatedSchedule takes the calendar away. The dedicated set stays as it is.
func (c *Client) DeleteDedicatedSchedule(ctx context.Context) error {
	_, err := write[struct{}](ctx, c, http.MethodDelete, "/v1/dedicated/schedule", nil, nil)
	return err
}
