package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"remuda/controller/gateway/queue"
	"remuda/internal/hclconfig"
	"remuda/internal/hclfault"
)

// Keys say how API keys of clients are treated: the bearer token of a request. Each key has
// a fair share of every model, and limits.
type Keys struct {
	// Required: a request without a known key is refused with 401. Else any key is
	// accepted, and none is as well.
	Required bool `hcl:"required"`
	// Default are the limits of each unknown key, and of the requests without a key, all
	// together. It is also the default of known keys.
	Default queue.KeyLimit `hcl:",remain"`
}

// Key is a known API key.
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
	if c.Keys.Required && len(c.NamedKeys) == 0 {
		out.Add("keys.required", `is true and no key is configured, so every request would be rejected: add a block key "NAME" { … }`)
	}
	return out
}

// keyring finds out whose a request is.
type keyring struct {
	required bool
	names    map[[sha256.Size]byte]string
}

func newKeyring(c *Config) *keyring {
	r := &keyring{required: c.Keys.Required, names: map[[sha256.Size]byte]string{}}
	for _, key := range c.NamedKeys {
		raw, _ := hex.DecodeString(key.hash()) // it was checked
		r.names[[sha256.Size]byte(raw)] = key.Name
	}
	return r
}

// keyLimits returns the limits of each named key.
func (c *Config) keyLimits() map[string]queue.KeyLimit {
	out := make(map[string]queue.KeyLimit, len(c.NamedKeys))
	for _, key := range c.NamedKeys {
		out[key.Name] = key.KeyLimit
	}
	return out
}

// name is the name of a request's key: that of a known one, the beginning of the hash of
// another, "anonymous" without one. ours: it is a known one, which is of no use to engines.
func (r *keyring) name(h http.Header) (name string, ours bool, e *apiError) {
	auth := h.Get("Authorization")
	scheme, key, _ := strings.Cut(auth, " ")
	key = strings.TrimSpace(key)
	if key == "" || !strings.EqualFold(scheme, "Bearer") {
		if r.required {
			return "", false, errNoKey()
		}
		return keyAnonymous, false, nil
	}
	sum := sha256.Sum256([]byte(key))
	if name, ok := r.names[sum]; ok {
		return name, true, nil
	}
	if r.required {
		return "", false, errBadKey()
	}
	return "key-" + hex.EncodeToString(sum[:6]), false, nil
}

func errNoKey() *apiError {
	return &apiError{status: http.StatusUnauthorized, typ: typeRequest, code: "missing_api_key", close: true,
		message: `the request has no API key; send one as "Authorization: Bearer KEY"`}
}

func errBadKey() *apiError {
	return &apiError{status: http.StatusUnauthorized, typ: typeRequest, code: "invalid_api_key", close: true,
		message: "invalid API key; ask the gateway's operator for one"}
}
