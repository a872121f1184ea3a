package dialect

import "strings"

// keyEnv has vLLM's API key, keyFlag that of vLLM and SGLang. vLLM prefers the flag.
const keyEnv, keyFlag = "VLLM_API_KEY", "--api-key"

// KeyOf returns the API key that an engine of the dialect called name has by its command and its
// environment, which getenv looks up: empty if it has none.
func KeyOf(name string, command []string, getenv func(string) string) string {
	if name == Ollama {
		return ""
	}
	for i, arg := range command {
		if arg == keyFlag && i+1 < len(command) {
			return command[i+1]
		}
		if key, ok := strings.CutPrefix(arg, keyFlag+"="); ok {
			return key
		}
	}
	if name == SGLang {
		return ""
	}
	return getenv(keyEnv)
}

// WithKey returns what an engine of the dialect called name needs to ask for the API key: further
// arguments of its command, and further variables of its environment. Ok is false if engines of the
// dialect have no API keys. vLLM asks for it at the routes under /v1, SGLang at all but those for
// health and metrics. SGLang takes it from its arguments alone, which other users of the machine can
// read.
func WithKey(name, key string) (args, env []string, ok bool) {
	switch name {
	case Ollama:
		return nil, nil, false
	case SGLang:
		return []string{keyFlag, key}, nil, true
	}
	return nil, []string{keyEnv + "=" + key}, true
}
