package client

import (
	"context"
	"errors"
	"fmt"

	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/wire"
)

var (
	// ErrTimeout is wrapped where a lock was not granted in time, or a call's
	// deadline was over.
	ErrTimeout = errors.New("timeout")
	// ErrRestarted is wrapped where the server is another incarnation than the
	// one that the client knows, and has no committed layout.
	ErrRestarted = errors.New("the GPU memory service has restarted and has lost the layout")
	// ErrStaleLayout is wrapped where another layout is committed than the one
	// that the client has mapped.
	ErrStaleLayout = errors.New("another memory layout has been committed")
	// ErrNoDeadline is returned by Remap and Reconnect where the context has no
	// deadline.
	ErrNoDeadline = errors.New("the context must have a deadline: a server that has lost its layout never grants a read lock")
	// ErrInUse is wrapped where other connections use the unit: see Options.IfUnused.
	ErrInUse = errors.New("other engines use the layout")
	// ErrClosed is wrapped where the session is over: the server is gone or has
	// ended it, a call's context has ended, or it was closed here.
	ErrClosed = errors.New("the session has ended")
	// ErrState is wrapped where a call does not fit what the client has: no
	// session, another lock, mappings that are or are not there.
	ErrState = errors.New("not possible now")
	// ErrBroken is wrapped after a call of the driver was left behind.
	ErrBroken = errors.New("a call of the GPU's driver did not return in time")
	// ErrOutOfMemory is wrapped where the GPU has no room for an allocation.
	ErrOutOfMemory = backend.ErrOutOfMemory
)

// RequestError is the server's refusal of a request. The session goes on.
type RequestError struct {
	// Code is one of package wire's Error constants.
	Code int64
	// Message is the server's text for people.
	Message string
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("the GPU memory service rejected the request (code %d): %s", e.Code, e.Message)
}

// Is tells what is an ErrOutOfMemory.
func (e *RequestError) Is(target error) bool {
	return target == ErrOutOfMemory && e.Code == wire.ErrorOutOfMemory
}

// HandshakeError is the server's refusal of a session.
type HandshakeError struct {
	// Code is one of package wire's Code constants; Dynamo's server sends none.
	Code string
	// Message is the server's text for people.
	Message string
	// Nonce, Committed and Hash are how the server stands.
	Nonce     string
	Committed bool
	Hash      string
}

func (e *HandshakeError) Error() string {
	if e.Code == "" && e.Message == "" {
		return "the GPU memory service grants no session"
	}
	return fmt.Sprintf("the GPU memory service grants no session (%s): %s", e.Code, e.Message)
}

// Is tells which of the errors above it is. A server that gives no code knows
// one reason only.
func (e *HandshakeError) Is(target error) bool {
	switch e.Code {
	case wire.CodeTimeout, "":
		return target == ErrTimeout
	case wire.CodeInUse:
		return target == ErrInUse
	case wire.CodeRestarted:
		return target == ErrRestarted
	}
	return false
}

// ended is the error of a context that has ended. A deadline is an ErrTimeout.
func ended(ctx context.Context) error {
	err := context.Cause(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return err
}
