package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"remuda/controller/api"
	"remuda/controller/gateway/queue"
	"remuda/internal/hclconfig"
	"remuda/internal/hclfault"
)

// Keys say how API keys of clients are treated: the bearer token of a request. Each key has
// a fair share of every model, and limits.
type Keys struct {
	// Required: a request without a known key is refused with 401. It is the default as soon as
	// the controller has a key with a secret. Else any key is accepted, and none is as well.
	Required bool `hcl:"required"`
	// Optional: a request without a known key is accepted although the controller has keys.
	Optional bool `hcl:"optional"`
	// Default are the limits of the requests without a known key, all together, unless the
	// controller has a key "anonymous". It is also the default of known keys.
	Default queue.KeyLimit `hcl:",remain"`
}

// Key is a known API key of this gateway alone. The controller's keys are known beside it, and
// one of the same name counts instead.
type Key struct {
	// Name is what logs call it.
	Name string `hcl:"name,label"`
	// SHA256 is the hash of the key in hex: the key itself needs not be in the file.
	SHA256 string `hcl:"sha256"`
	// Token is the key itself, in place of its SHA256.
	Token          string `hcl:"token"`
	queue.KeyLimit `hcl:",remain"`
}

// SetDefaults is for blocks of a config file.
func (k *Key) SetDefaults(c *Config) { k.KeyLimit = c.Keys.Default }

// hash is the SHA-256 of the key in hex, in lower case.
func (k Key) hash() string {
	if k.Token != "" {
		sum := sha256.Sum256([]byte(k.Token))
		return hex.EncodeToString(sum[:])
	}
	return strings.ToLower(k.SHA256)
}

// keyAnonymous is the name of requests without a key.
const keyAnonymous = "anonymous"

// DefaultKeyLimit is a key without limits, of a middle priority.
func DefaultKeyLimit() queue.KeyLimit {
	return queue.KeyLimit{Weight: 1, Priority: 5, MaxPriority: 5}
}

func (c *Config) keyProblems() hclfault.Problems {
	var out hclfault.Problems
	check := func(prefix string, l queue.KeyLimit) bool {
		_, err := queue.NewKeys(l, nil)
		if err != nil {
			out.Add(prefix, "is invalid: %v", err)
		}
		return err == nil
	}
	valid := check("keys", c.Keys.Default)
	hashes := map[string]string{}
	for _, key := range c.NamedKeys {
		field := hclconfig.Title("key", key.Name)
		if valid { // else the default is what is wrong with it
			check(field, key.KeyLimit)
		}
		hash := key.hash()
		raw, err := hex.DecodeString(hash)
		switch {
		case key.Name == keyAnonymous:
			out.Add(field, "has the name that is reserved for requests without a key: use another name")
		case hash == "":
			out.Add(field+".token", "is missing: must be the key that clients send, or set sha256 to its SHA-256")
			out.Blame(field)
		case key.Token != "" && key.SHA256 != "":
			out.Add(field+".token", "is set beside sha256: set one of them")
		case err != nil || len(raw) != sha256.Size:
			out.Add(field+".sha256", "is %q: must be the SHA-256 of the key as 64 hex digits, or set token to the key itself", key.SHA256)
		case hashes[hash] != "":
			out.Add(field+".sha256", "is a duplicate of key %q: each key must be different", hashes[hash])
			out.Blame(field + ".token")
		default:
			hashes[hash] = key.Name
		}
	}
	if c.Keys.Required && c.Keys.Optional {
		out.Add("keys.optional", "is true beside keys.required: set one of them")
	}
	if c.Keys.Required && len(c.NamedKeys) == 0 && len(c.Controller.Addresses) == 0 {
		out.Add("keys.required", `is true and no key is configured, so every request would be rejected: add a block key "NAME" { … }`)
	}
	return out
}

// keyring knows whose a request is. It does not change.
type keyring struct {
	required bool
	names    map[[sha256.Size]byte]secret
	// models are the models and pipelines that a key may call, for those that may not call all.
	models map[string][]string
}

// secret is what a client sends of a key.
type secret struct {
	key string
	// expires is from when on it is not valid, zero for never.
	expires time.Time
}

func newKeyring(c *Config) *keyring {
	r := &keyring{required: c.Keys.Required, names: map[[sha256.Size]byte]secret{}}
	for _, key := range c.NamedKeys {
		raw, _ := hex.DecodeString(key.hash()) // it was checked
		r.names[[sha256.Size]byte(raw)] = secret{key: key.Name}
	}
	return r
}

// keysOf reads the controller's keys: who has which secret, the limits of the requests without a
// known key, and those of each key.
func (c *Config) keysOf(keys []api.GatewayKey) (r *keyring, def queue.KeyLimit, named map[string]queue.KeyLimit) {
	r = newKeyring(c)
	r.models = map[string][]string{}
	def, named = c.Keys.Default, c.keyLimits()
	secrets := 0
	for _, key := range keys {
		limit := limitOf(key.KeyLimits)
		if key.Name == keyAnonymous {
			def = limit
		}
		named[key.Name] = limit
		if len(key.Models) > 0 {
			r.models[key.Name] = key.Models
		}
		for _, s := range key.Secrets {
			raw, err := hex.DecodeString(s.SHA256)
			if err != nil || len(raw) != sha256.Size {
				continue // the controller of another version: nobody can have such a secret
			}
			expires := key.ExpiresAt
			if at := s.ExpiresAt; !at.IsZero() && (expires.IsZero() || at.Before(expires)) {
				expires = at
			}
			r.names[[sha256.Size]byte(raw)] = secret{key: key.Name, expires: expires}
			secrets++
		}
	}
	r.required = r.required || secrets > 0 && !c.Keys.Optional
	return r, def, named
}

// limitOf is what one gateway lets a key do.
func limitOf(l api.KeyLimits) queue.KeyLimit {
	out := queue.KeyLimit{Weight: l.Weight, Priority: l.Priority, MaxPriority: max(l.Priority, l.MaxPriority), Concurrency: int(l.Concurrency),
		TokensPerMinute: l.TokensPerMinute}
	if l.RequestsPerMinute > 0 {
		out.Rate = float64(l.RequestsPerMinute) / 60
		out.Burst = int(min(max(l.RequestsPerMinute/6, 1), maxKeyBurst)) // those of ten seconds
	}
	return out
}

// maxKeyBurst keeps a burst in range.
const maxKeyBurst = 1 << 30

// may reports whether a key may call a model or pipeline.
func (r *keyring) may(key, model string) bool {
	models, limited := r.models[key]
	return !limited || slices.ContainsFunc(models, func(m string) bool {
		start, open := strings.CutSuffix(m, "*")
		return m == model || open && strings.HasPrefix(model, start)
	})
}

// keyLimits returns the limits of each named key.
func (c *Config) keyLimits() map[string]queue.KeyLimit {
	out := make(map[string]queue.KeyLimit, len(c.NamedKeys))
	for _, key := range c.NamedKeys {
		out[key.Name] = key.KeyLimit
	}
	return out
}

// sentKey returns the key that a client sends, empty without one.
func sentKey(h http.Header) string {
	scheme, key, _ := strings.Cut(h.Get("Authorization"), " ")
	if key = strings.TrimSpace(key); key != "" && strings.EqualFold(scheme, "Bearer") {
		return key
	}
	return strings.TrimSpace(h.Get(headerAPIKey))
}

// name is the name of a request's key: that of a known one, "anonymous" for all others and
// without one. ours: it is a known one, which is of no use to engines.
func (r *keyring) name(h http.Header) (name string, ours bool, e *apiError) {
	key := sentKey(h)
	if key == "" {
		if r.required {
			return "", false, errNoKey()
		}
		return keyAnonymous, false, nil
	}
	if s, ok := r.names[sha256.Sum256([]byte(key))]; ok && (s.expires.IsZero() || time.Now().Before(s.expires)) {
		return s.key, true, nil
	}
	if r.required {
		return "", false, errBadKey()
	}
	return keyAnonymous, false, nil
}

func errForbiddenModel(key, model string) *apiError {
	return &apiError{status: http.StatusForbidden, typ: typeRequest, code: "model_not_allowed", param: "model",
		message: fmt.Sprintf("API key %s may not call model %s; ask the gateway's operator", shorten(key), shorten(model))}
}

func errNoKey() *apiError {
	return &apiError{status: http.StatusUnauthorized, typ: typeRequest, code: "missing_api_key", close: true,
		message: `the request has no API key; send one as "Authorization: Bearer KEY" or "X-Api-Key: KEY"`}
}

// codeBadKey is the code of an unknown key.
const codeBadKey = "invalid_api_key"

func errBadKey() *apiError {
	return &apiError{status: http.StatusUnauthorized, typ: typeRequest, code: codeBadKey, close: true,
		message: "invalid API key; ask the gateway's operator for one"}
}
