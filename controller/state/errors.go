package state

import "fmt"

// Code is the kind of an Error.
type Code string

// The codes.
const (
	// CodeBadRequest: the command can never be applied as it is.
	CodeBadRequest Code = "bad_request"
	// CodeConflict: the state is not, or no longer, what the command was made for.
	CodeConflict Code = "conflict"
	// CodeNotFound: what the command names does not exist.
	CodeNotFound Code = "not_found"
	// CodeForbidden: the model's own settings do not allow it: its management mode or, unless the
	// request is forced, its minimum or that it is dedicated.
	CodeForbidden Code = "forbidden"
	// CodeUnknownCommand: the command is of a newer version, which this server must
	// not skip. A server that meets it in the log has to stop and be upgraded.
	CodeUnknownCommand Code = "unknown_command"
	// CodeInternal: a bug; the command changed nothing.
	CodeInternal Code = "internal"
)

// Error is a refusal: the command changed nothing. It is the same on every server.
type Error struct {
	Code Code
	// Message is a sentence for people.
	Message string
	// Subject names the model, replica, node, GPU, seat or token it is about.
	Subject string
}

// Sentinels for errors.Is; an *Error matches the one of its code.
var (
	ErrBadRequest     = &Error{Code: CodeBadRequest, Message: "bad request"}
	ErrConflict       = &Error{Code: CodeConflict, Message: "conflict"}
	ErrNotFound       = &Error{Code: CodeNotFound, Message: "not found"}
	ErrForbidden      = &Error{Code: CodeForbidden, Message: "forbidden"}
	ErrUnknownCommand = &Error{Code: CodeUnknownCommand, Message: "unknown command"}
)

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Is makes an Error match the sentinel of its code.
func (e *Error) Is(target error) bool {
	switch target {
	case error(ErrBadRequest), error(ErrConflict), error(ErrNotFound), error(ErrForbidden), error(ErrUnknownCommand):
		t, ok := target.(*Error)
		return ok && t.Code == e.Code
	}
	return false
}

func reject(code Code, subject, format string, args ...any) *Error {
	return &Error{Code: code, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

func badRequest(subject, format string, args ...any) *Error {
	return reject(CodeBadRequest, subject, format, args...)
}

func conflict(subject, format string, args ...any) *Error {
	return reject(CodeConflict, subject, format, args...)
}

func notFound(subject, format string, args ...any) *Error {
	return reject(CodeNotFound, subject, format, args...)
}
