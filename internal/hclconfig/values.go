package hclconfig

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/zclconf/go-cty/cty"
)

func isString(v cty.Value) bool {
	return v.Type() == cty.String && v.IsKnown() && !v.IsNull()
}

// Text sets a string.
func Text[C any](at func(*C) *string) func(*C, cty.Value) error {
	return func(c *C, v cty.Value) error {
		if !isString(v) {
			return errors.New("must be a string")
		}
		*at(c) = v.AsString()
		return nil
	}
}

// Texts sets a list of strings.
func Texts[C any](at func(*C) *[]string) func(*C, cty.Value) error {
	return func(c *C, v cty.Value) error {
		wrong := errors.New(`must be a list of strings like ["a", "b"]`)
		if v.IsNull() || !v.IsKnown() || !v.Type().IsTupleType() && !v.Type().IsListType() {
			return wrong
		}
		list := []string{}
		for _, e := range v.AsValueSlice() {
			if !isString(e) {
				return wrong
			}
			list = append(list, e.AsString())
		}
		*at(c) = list
		return nil
	}
}

// Bool sets a bool.
func Bool[C any](at func(*C) *bool) func(*C, cty.Value) error {
	return func(c *C, v cty.Value) error {
		if v.Type() != cty.Bool || !v.IsKnown() || v.IsNull() {
			return errors.New("must be true or false")
		}
		*at(c) = v.True()
		return nil
	}
}

// Duration sets a time, which is written as Go writes it.
func Duration[C any](at func(*C) *time.Duration) func(*C, cty.Value) error {
	return func(c *C, v cty.Value) error {
		if !isString(v) {
			return errors.New(`must be a duration like "90s"`)
		}
		d, err := time.ParseDuration(v.AsString())
		if err != nil {
			return fmt.Errorf(`is %q: must be a duration like "90s"`, v.AsString())
		}
		*at(c) = d
		return nil
	}
}

// Count sets a whole number.
func Count[C any, N int | int64 | uint64](at func(*C) *N) func(*C, cty.Value) error {
	return func(c *C, v cty.Value) error {
		if v.Type() != cty.Number || !v.IsKnown() || v.IsNull() || !v.AsBigFloat().IsInt() {
			return errors.New("must be a whole number")
		}
		n, accuracy := v.AsBigFloat().Int64()
		if accuracy != 0 || int64(N(n)) != n || n < 0 && N(n) > 0 {
			return errors.New("is out of range: must be no negative and no huge number")
		}
		*at(c) = N(n)
		return nil
	}
}

// Float sets a number.
func Float[C any](at func(*C) *float64) func(*C, cty.Value) error {
	return func(c *C, v cty.Value) error {
		if v.Type() != cty.Number || !v.IsKnown() || v.IsNull() {
			return errors.New("is no number")
		}
		n, _ := v.AsBigFloat().Float64()
		if math.IsInf(n, 0) {
			return errors.New("is out of range")
		}
		*at(c) = n
		return nil
	}
}
