package state

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// maxName is the longest name or ID, in bytes.
const maxName = 512

// checkName accepts what can be a key: not empty, not long, no spaces and no control
// characters.
func checkName(what, s string) error {
	switch {
	case s == "":
		return fmt.Errorf("%s is empty", what)
	case len(s) > maxName:
		return fmt.Errorf("%s is %d bytes: must be at most %d bytes", what, len(s), maxName)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s %q is not valid UTF-8", what, s)
	}
	for _, r := range s {
		if r <= ' ' || r == 0x7f {
			return fmt.Errorf("%s %q: spaces and control characters are not allowed", what, s)
		}
	}
	return nil
}

// checkText accepts a short text for people: not empty, not longer than that many bytes,
// no NUL.
func checkText(what, s string, longest int) error {
	switch {
	case s == "":
		return fmt.Errorf("%s is empty", what)
	case len(s) > longest:
		return fmt.Errorf("%s is %d bytes: must be at most %d bytes", what, len(s), longest)
	case strings.ContainsRune(s, 0):
		return fmt.Errorf("%s %q contains a NUL byte", what, s)
	}
	return nil
}

// CheckReplicaName returns why the state rejects a replica's name, nil if it is valid.
func CheckReplicaName(name string) error { return checkName("replica", name) }

// checkTime converts t to UTC and rejects a year outside 0 to 9999: JSON cannot represent it, and
// a state that cannot be written is worse than a rejected command.
func checkTime(what string, t *time.Time) error {
	*t = t.UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		return fmt.Errorf("%s is in the year %d: must be 0 to 9999", what, y)
	}
	return nil
}

// invalid joins the errors of a command into one CodeBadRequest error, nil if all are nil.
func invalid(subject string, errs ...error) *Error {
	if err := errors.Join(errs...); err != nil {
		return badRequest(subject, "%v", err)
	}
	return nil
}
