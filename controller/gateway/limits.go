package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"remuda/controller/api"
	"remuda/controller/gateway/queue"
)

// Response headers that say what a key has left of its limits, as OpenAI's API does.
const (
	headerLimitRequests = "X-Ratelimit-Limit-Requests"     // how many requests the key may send in a minute
	headerLeftRequests  = "X-Ratelimit-Remaining-Requests" // how many it may send at once now
	headerResetRequests = "X-Ratelimit-Reset-Requests"     // after which time that is all that it ever may
	headerLimitTokens   = "X-Ratelimit-Limit-Tokens"       // how many tokens the key's requests may take in a minute
	headerLeftTokens    = "X-Ratelimit-Remaining-Tokens"   // how many they may take at once now
	headerResetTokens   = "X-Ratelimit-Reset-Tokens"       // after which time that is all that they ever may
	headerShouldRetry   = "X-Should-Retry"                 // false: client libraries that retry by themselves should not
	headerRetryAfter    = "Retry-After"                    // after how many seconds the request may be served
)

// admit counts the request among its key's, and says in headers what is left of the key's limits.
func (x *exchange) admit() *apiError {
	if e := x.withinBudget(); e != nil {
		return e
	}
	if !x.limit.Limited() {
		return nil
	}
	room, wait, err := x.g.dispatcher.Admit(x.key, x.promptTokens)
	h := x.client.w.Header()
	say := func(limit, left, reset string, perMinute, n int64, full time.Duration) {
		h[limit] = []string{strconv.FormatInt(perMinute, 10)}
		h[left] = []string{strconv.FormatInt(n, 10)}
		h[reset] = []string{full.Round(time.Millisecond).String()}
	}
	if x.limit.Rate > 0 {
		say(headerLimitRequests, headerLeftRequests, headerResetRequests, int64(x.limit.Rate*60+.5), room.Requests, room.ResetRequests)
	}
	if x.limit.TokensPerMinute > 0 {
		say(headerLimitTokens, headerLeftTokens, headerResetTokens, x.limit.TokensPerMinute, room.Tokens, room.ResetTokens)
	}
	if err != nil {
		return errLimited(x.key, err, wait)
	}
	x.limited = true
	return nil
}

func errLimited(key string, err error, wait time.Duration) *apiError {
	what := "rate"
	switch {
	case errors.Is(err, queue.ErrConcurrency):
		what = "concurrency"
	case errors.Is(err, queue.ErrTokens):
		what = "token"
	}
	return &apiError{status: http.StatusTooManyRequests, typ: typeLimit, code: "rate_limit_exceeded", retryAfter: max(wait, time.Second),
		message: fmt.Sprintf("%s limit exceeded for API key %s; retry after the time in the Retry-After header", what, shorten(key))}
}

// budget is what a key may use in a day and a month of UTC, in tokens; 0 is no limit.
type budget struct{ day, month int64 }

// shareWait is how long a request waits until this gateway may use more of its key's budget. Other gateways
// give back what they do not need with their next reports; a new leader gives nothing before all have reported
// twice, after 3 s.
const shareWait = 5 * time.Second

// withinBudget refuses a request of a key that has used up a budget. Those that run are not ended. If only
// this gateway's part is used up, the request waits for more.
func (x *exchange) withinBudget() *apiError {
	u := &x.g.usage
	e, more := u.ask(time.Now(), x.key)
	if more == nil {
		return e
	}
	u.wait(x.key, 1)
	defer u.wait(x.key, -1)
	wait := shareWait
	if !x.deadline.IsZero() {
		wait = min(wait, time.Until(x.deadline))
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	for more != nil {
		select {
		case <-more:
			e, more = u.ask(time.Now(), x.key)
		case <-x.ctx.Done():
			return x.left()
		case <-limit.C:
			return errNoShare(x.key)
		}
	}
	return e
}

// errNoShare is of a key that has tokens left, which are not this gateway's.
func errNoShare(key string) *apiError {
	return &apiError{status: http.StatusTooManyRequests, typ: typeLimit, code: "budget_in_use", retryAfter: time.Second,
		message: fmt.Sprintf("what is left of the budget of API key %s is in use at other gateways, or the gateway cannot reach the controller; retry after the time in the Retry-After header", shorten(key))}
}

// errBudget is of a key that has used up its tokens of a day or a month, which goes on for so long.
func errBudget(key, period string, tokens int64, left time.Duration) *apiError {
	return &apiError{status: http.StatusTooManyRequests, typ: "insufficient_quota", code: "insufficient_quota", retryAfter: left, noRetry: true,
		message: fmt.Sprintf("API key %s has used its %d tokens of this %s; ask the gateway's operator for more, or wait for the next %s", shorten(key), tokens, period, period)}
}

// count takes note of what the answer took.
func (x *exchange) count(now time.Time) {
	t := &x.tokens
	t.settle(&x.request)
	if x.limited {
		more := int64(0)
		switch {
		case t.answered:
			more = t.Prompt + t.Completion - x.promptTokens
		case !x.piped: // of a pipeline the steps have counted
			more = -x.promptTokens
		}
		x.g.dispatcher.Leave(x.key, more)
	}
	if !t.answered {
		return
	}
	u := api.Usage{Requests: 1, PromptTokens: t.Prompt, CachedTokens: t.Cached, CompletionTokens: t.Completion}
	if t.estimated {
		u.EstimatedTokens = u.Tokens()
	}
	x.g.usage.add(now, x.key, x.head.Model, u)
	x.g.metrics.countTokens(x.label, x.key, u)
}
