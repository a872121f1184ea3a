package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"remuda/controller/api"
	"remuda/controller/nomad"
	"remuda/controller/raft"
	"remuda/controller/state"
)

const (
	contentJSON  = "application/json"
	contentText  = "text/plain; charset=utf-8"
	contentBytes = "application/octet-stream"
)

// statusClientGone is for metrics: nobody gets it.
const statusClientGone = 499

// Times after which to try again: an election, and a Nomad that comes back.
const (
	retryLeader = time.Second
	retryNomad  = 5 * time.Second
)

// answer is what a route answers: a value that becomes JSON, or raw bytes, or a stream.
type answer struct {
	value any
	raw   []byte
	// stream writes the body. What fails in the middle ends the connection.
	stream func(io.Writer) error
	// contentType is of raw and stream.
	contentType string
	// index is that of a read, at least 1; 0 is none.
	index uint64
	// status, 0: 200.
	status int
}

func (a answer) write(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	if a.index > 0 {
		h.Set(api.HeaderIndex, strconv.FormatUint(a.index, 10))
	}
	status := a.status
	if status == 0 {
		status = http.StatusOK
	}
	if a.stream != nil {
		h.Set("Content-Type", a.contentType)
		w.WriteHeader(status)
		if r.Method == http.MethodHead {
			return nil
		}
		return a.stream(w)
	}
	body, kind := a.raw, a.contentType
	if kind == "" {
		kind = contentJSON
	}
	if body == nil {
		value := a.value
		if value == nil {
			value = struct{}{}
		}
		var err error
		if body, err = json.Marshal(value); err != nil {
			return fmt.Errorf("write the response: %w", err)
		}
		body = append(body, '\n')
	}
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // A client that is gone needs no error.
	}
	return nil
}

// stateStatus is HTTP's for the state's refusals.
var stateStatus = map[state.Code]int{
	state.CodeBadRequest: http.StatusBadRequest,
	state.CodeConflict:   http.StatusConflict,
	state.CodeNotFound:   http.StatusNotFound,
	state.CodeForbidden:  http.StatusForbidden,
}

// asError turns any error into one of the API's.
func asError(err error) *api.Error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	var refused *state.Error
	if errors.As(err, &refused) {
		if status, ok := stateStatus[refused.Code]; ok {
			return &api.Error{Status: status, Code: string(refused.Code), Message: refused.Message}
		}
	}
	again := func(code string, after time.Duration) *api.Error {
		return &api.Error{Status: http.StatusServiceUnavailable, Code: code, Message: err.Error(), RetryAfter: after}
	}
	switch {
	case errors.Is(err, raft.ErrUnknownOutcome):
		return &api.Error{Status: http.StatusGatewayTimeout, Code: api.CodeUnknownOutcome,
			Message: fmt.Sprintf("the request may or may not take effect: check the state before retrying (%v)", err)}
	case errors.Is(err, raft.ErrNotLeader):
		return again(api.CodeNoLeader, retryLeader)
	case errors.Is(err, raft.ErrBusy):
		return again(api.CodeBusy, retryLeader)
	case errors.Is(err, raft.ErrFeatureLevel), errors.Is(err, raft.ErrUnhealthy):
		return conflict("%v", err)
	case errors.Is(err, raft.ErrClosed):
		return again(api.CodeClosing, retryLeader)
	case errors.Is(err, nomad.ErrUnreachable), errors.Is(err, nomad.ErrDenied):
		return again(api.CodeNomad, retryNomad)
	case errors.Is(err, nomad.ErrRefused):
		return badRequest("%v", err)
	case errors.Is(err, state.ErrSnapshotDamaged), errors.Is(err, state.ErrSnapshotNewer):
		return badRequest("%v: nothing was changed", err)
	case errors.Is(err, context.Canceled):
		return &api.Error{Status: statusClientGone, Code: api.CodeInternal, Message: "the client closed the connection"}
	case errors.Is(err, context.DeadlineExceeded):
		return again(api.CodeBusy, retryLeader)
	}
	return &api.Error{Status: http.StatusInternalServerError, Code: api.CodeInternal, Message: err.Error()}
}

func writeError(w http.ResponseWriter, r *http.Request, e *api.Error, index uint64) {
	h := w.Header()
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if err := (answer{value: e, index: index, status: e.Status}).write(w, r); err != nil {
		panic(err) // Texts and numbers are always JSON.
	}
}
