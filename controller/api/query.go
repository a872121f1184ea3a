package api

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Headers of requests and answers.
const (
	// HeaderToken has the token's secret; "Authorization: Bearer" does as well.
	HeaderToken = "X-Remuda-Token"
	// HeaderIndex has an answer's index, for the next ?index=.
	HeaderIndex = "X-Remuda-Index"
	// HeaderLastContact has the milliseconds since the answering server heard from the
	// leader, HeaderKnownLeader whether there is one.
	HeaderLastContact = "X-Remuda-LastContact"
	HeaderKnownLeader = "X-Remuda-KnownLeader"
	// HeaderForwarded has the ID of the server that passed a request on. It is passed
	// on once.
	HeaderForwarded = "X-Remuda-Forwarded"
)

// How long a blocking query waits. The server adds up to a sixteenth, so that not all
// come back at once.
const (
	DefaultWait = 5 * time.Minute
	MaxWait     = 10 * time.Minute
)

// QueryOptions say how a read is made.
type QueryOptions struct {
	// Index above 0 waits until the answer may be another one than the one that had this
	// index, or until Wait is over; 0 answers at once. Wait is DefaultWait where it is 0
	// and MaxWait at most.
	Index uint64
	Wait  time.Duration
	// Stale lets the server answer from what it has, without asking the leader.
	Stale bool
}

func (q QueryOptions) set(v url.Values) {
	if q.Index > 0 {
		v.Set("index", strconv.FormatUint(q.Index, 10))
		if q.Wait > 0 {
			v.Set("wait", q.Wait.String())
		}
	}
	if q.Stale {
		v.Set("stale", "")
	}
}

// QueryMeta says how an answer was made.
type QueryMeta struct {
	// Index is for the next QueryOptions. Where it is lower than the last one, the state
	// was replaced: begin again with 0, as Watch does.
	Index uint64
	// LastContact is how long ago the answering server had heard from the leader.
	LastContact time.Duration
	KnownLeader bool
}

func queryMeta(h http.Header) QueryMeta {
	var m QueryMeta
	// What is missing stays zero: /live and its like have none of them.
	m.Index, _ = strconv.ParseUint(h.Get(HeaderIndex), 10, 64)
	ms, _ := strconv.ParseInt(h.Get(HeaderLastContact), 10, 64)
	m.LastContact = time.Duration(ms) * time.Millisecond
	m.KnownLeader = h.Get(HeaderKnownLeader) == "true"
	return m
}

// Watch's pauses after failures: short at first, for an election; then long enough not
// to be a burden to a cluster that is down.
const (
	watchPause    = 100 * time.Millisecond
	watchPauseMax = 5 * time.Second
)

// Watch calls query again and again, each time with the index of the answer before, so
// that it returns when something may have changed. An index that went back is answered
// by a query without one, as the state was replaced. After an error, which failed is
// told unless it is nil, there is a pause, and the next query waits for nothing. Watch
// returns when ctx ends, with its error.
func Watch(ctx context.Context, q QueryOptions, query func(context.Context, QueryOptions) (QueryMeta, error), failed func(error)) error {
	pause := watchPause
	for {
		meta, err := query(ctx, q)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && meta.Index == 0 {
			err = fmt.Errorf("the response has no %s header: cannot watch", HeaderIndex)
		}
		if err == nil {
			pause = watchPause
			if meta.Index < q.Index {
				q.Index = 0
			} else {
				q.Index = meta.Index
			}
			continue
		}
		if failed != nil {
			failed(err)
		}
		q.Index = 0
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, watchPauseMax)
	}
}
