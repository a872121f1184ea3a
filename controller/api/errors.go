package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Codes of errors, for programs. The message is for people.
const (
	CodeBadRequest = "bad_request" // it can never work as it is
	CodeNoToken    = "no_token"    // a token is wanted and there was none (401)
	CodeForbidden  = "forbidden"   // the token, or the model's management, does not allow it
	CodeNotFound   = "not_found"   // what it names does not exist
	CodeNoRoute    = "no_route"    // there is no such path
	CodeNoMethod   = "no_method"   // the path does not take the method
	CodeConflict   = "conflict"    // the state is another one than the caller thinks
	CodeTooLarge   = "too_large"   // the body is longer than may be
	CodeNoLeader   = "no_leader"   // the cluster has no leader now: nothing happened, try again
	CodeBusy       = "busy"        // the leader could not take it in time: nothing happened, try again
	CodeNomad      = "nomad"       // Nomad does not answer: nothing happened, try again
	CodeClosing    = "closing"     // the server is stopping: nothing happened, ask another
	// CodeUnknownOutcome: it may have happened, or may yet. Look before trying again.
	CodeUnknownOutcome = "unknown_outcome"
	CodeInternal       = "internal" // a fault of the server
)

// Error is an answer that says no.
type Error struct {
	// Status is HTTP's; 0 in the JSON.
	Status int `json:"-"`
	// Code is one of the codes above.
	Code string `json:"code" enum:"api.Code*"`
	// Message is for people.
	Message string `json:"error"`
	// Faults are in the model file, with their lines.
	Faults []Fault `json:"faults,omitempty"`
	// RetryAfter is when to try again, 0 where that was not said.
	RetryAfter time.Duration `json:"-"`
}

// Fault is one thing that is wrong in a file.
type Fault struct {
	File string `json:"file"`
	// Line and Column count from 1.
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Text   string `json:"text"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// maxError is how much of an answer that says no is read.
const maxError = 1 << 20

// responseError reads an answer that says no.
func responseError(r *http.Response) error {
	e := &Error{}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxError))
	if err != nil {
		return fmt.Errorf("%s: read the response %s: %w", r.Request.URL.Path, r.Status, err)
	}
	if json.Unmarshal(body, e) != nil || e.Message == "" {
		// Not from our server: a proxy, or another program at that address. Its page says nothing to a terminal.
		e = &Error{Code: CodeInternal, Message: fmt.Sprintf("%s responded %s", r.Request.URL.Host, r.Status)}
		const clip = 200
		if text := bytes.TrimSpace(body); len(text) > 0 && text[0] != '<' {
			e.Message += fmt.Sprintf(": %q", text[:min(len(text), clip)])
		}
		if to := r.Header.Get("Location"); to != "" {
			e.Message += fmt.Sprintf(": redirects are not followed: use the address of a controller, such as %s", to)
		} else {
			e.Message += ": is it a remuda controller?"
		}
	}
	e.Status = r.StatusCode
	if s, err := strconv.Atoi(r.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	return e
}
