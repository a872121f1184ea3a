package nomad

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// What an error of this package means to its caller. Errors that wrap none of them
// are the context's.
var (
	// ErrConflict: something else is there than the caller thought. Observe, and
	// decide again.
	ErrConflict = errors.New("conflict")
	// ErrNotFound: Nomad does not know it.
	ErrNotFound = errors.New("not found")
	// ErrUnreachable: Nomad gave no answer that can be used. What was asked for may
	// have happened or not; asking again is safe.
	ErrUnreachable = errors.New("cannot reach Nomad")
	// ErrDenied: the token is not known or may not do that. As a rule it is the
	// controller's fault and not that of what was asked for, and passes: a server of
	// Nomad's that has just joined does not know the tokens yet.
	ErrDenied = errors.New("denied by Nomad")
	// ErrRefused: it will not work, however often it is tried.
	ErrRefused = errors.New("refused")
)

// classify wraps an answer's error. ctx is the caller's: when that has ended, the
// error is its own.
func classify(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	var answer api.UnexpectedResponseError
	if !errors.As(err, &answer) || !answer.HasStatusCode() {
		return fmt.Errorf("%s: %w: %w", what, ErrUnreachable, err)
	}
	body := strings.TrimSpace(answer.Body())
	if body == "" {
		body = answer.StatusText()
	}
	text := fmt.Errorf("%s (%d)", body, answer.StatusCode())
	kind := ErrUnreachable
	switch code := answer.StatusCode(); {
	case strings.Contains(body, api.RegisterEnforceIndexErrPrefix):
		kind = ErrConflict
	case code == http.StatusNotFound:
		kind = ErrNotFound
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		kind = ErrDenied
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout:
	case code >= 400 && code < 500:
		kind = ErrRefused
	// Nomad answers 500 for what its RPC handlers refuse as well. A list of
	// mistakes is one of hashicorp/go-multierror.
	case code == http.StatusInternalServerError && (strings.Contains(body, "error occurred:") || strings.Contains(body, "errors occurred:")):
		kind = ErrRefused
	}
	return fmt.Errorf("%s: %w: %w", what, kind, text)
}
