// Reads the text of PTX.
#include "dev/ptx/module.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include "dev/ptx/instructions.h"
#include "dev/ptx/machine.h"  // Fault

namespace ptx {

namespace {

std::string trimmed(const std::string& text) {
    const size_t first = text.find_first_not_of(" \t\n\r");
    return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\n\r") - first + 1);
}

// Splits at commas outside of braces and brackets.
std::vector<std::string> split_operands(const std::string& text) {
    std::vector<std::string> parts;
    std::string part;
    int depth = 0;
    for (const char c : text) {
        depth += (c == '{' || c == '[' || c == '(') - (c == '}' || c == ']' || c == ')');
        if (c == ',' && depth == 0)
            parts.push_back(trimmed(part)), part.clear();
        else
            part += c;
    }
    if (!trimmed(part).empty()) parts.push_back(trimmed(part));
    return parts;
}

std::string without_comments(const std::string& text) {
    std::string rest;
    for (size_t i = 0; i < text.size(); i++) {
        if (text.compare(i, 2, "//") == 0) i = std::min(text.find('\n', i), text.size() - 1);
        rest += text[i];
    }
    return rest;
}

// Labels and statements, without the braces around groups of them.
std::vector<std::string> statements(const std::string& body) {
    std::vector<std::string> found;
    std::string statement;
    for (const char c : without_comments(body)) {
        if (c == ';' || c == ':') {
            // A label, and no "::" of an opcode, ends at its colon.
            const std::string label = trimmed(statement);
            if (c == ':' && (label.empty() || label.find_first_of(" \t[.") != std::string::npos)) {
                statement += c;
                continue;
            }
            found.push_back(c == ':' ? label + ":" : label);
            statement.clear();
        } else if ((c == '{' || c == '}') && trimmed(statement).empty()) {
            continue;  // a scope
        } else {
            statement += c;
        }
    }
    return found;
}

uint64_t number_of(const std::string& text) {
    if (text.compare(0, 2, "0f") == 0 || text.compare(0, 2, "0d") == 0)
        return std::strtoull(text.c_str() + 2, nullptr, 16);
    if (text[0] == '-') return uint64_t(std::strtoll(text.c_str(), nullptr, 0));
    return std::strtoull(text.c_str(), nullptr, 0);
}

class Decoder : public Operands {
public:
    Decoder(const std::string& module, Kernel& of) : Operands(of), module_(module) {}

    void decode_entry(size_t at) {
        const size_t open = module_.find('(', at), close = module_.find(")\n", open);
        uint32_t offset = 0;
        for (const std::string& text : split_operands(module_.substr(open + 1, close - open - 1))) {
            const Declared declared = declaration(text);
            offset = (offset + declared.align - 1) / declared.align * declared.align;
            kernel.parameters.push_back({offset, declared.bytes});
            addresses_[declared.name] = offset;
            offset += declared.bytes;
        }
        kernel.parameter_bytes = offset;
        const std::string body = body_at(close);
        add_outer_arrays(body);
        decode_body(body, "");
        for (const auto& [number, label] : branches_) {
            const auto found = labels_.find(label);
            if (found == labels_.end()) throw Fault("PTX of " + kernel.name + " has no label " + label);
            kernel.code[number].target = found->second;
        }
    }

    Register target(const std::string& name, int bytes) override {
        return name == "_" ? new_register(bytes) : register_of(name, bytes);
    }
    Register source(const std::string& name, int bytes) override {
        if (name[0] == '%' && types_.count(type_key(name)) == 0) return special(name);
        if (const auto found = addresses_.find(name); found != addresses_.end()) return constant(found->second, bytes);
        if (name == "dynamic_shared_") return special("dynamic");
        if (name == "WARP_SZ") return constant(kLanes, 4);
        const bool is_number = name[0] == '-' || (name[0] >= '0' && name[0] <= '9');
        return is_number ? constant(number_of(name), bytes) : register_of(name, bytes);
    }
    Register constant(uint64_t value, int bytes) override {
        if (bytes == 4) value &= 0xFFFFFFFF;
        for (const Constant& constant : kernel.constants)
            if (constant.value == value && constant.bytes == bytes && constant.special.empty()) return constant.reg;
        kernel.constants.push_back({new_register(bytes), value, bytes, ""});
        return kernel.constants.back().reg;
    }
    Register address(const std::string& text, int* bytes, int64_t* offset) override {
        if (text.size() < 2 || text[0] != '[') refuse();
        std::string inside = text.substr(1, text.size() - 2);
        *offset = 0;
        if (const size_t plus = inside.find('+'); plus != std::string::npos) {
            *offset = int64_t(number_of(trimmed(inside.substr(plus + 1))));
            inside = trimmed(inside.substr(0, plus));
        }
        if (const auto found = addresses_.find(inside); found != addresses_.end()) {
            *bytes = 4;
            return constant(found->second, 4);
        }
        if (inside == "dynamic_shared_") return *bytes = 4, special("dynamic");
        *bytes = size_of(inside);
        return source(inside, *bytes);
    }
    int size_of(const std::string& name) const override {
        const auto found = types_.find(type_key(name));
        if (found == types_.end()) refuse();
        return found->second;
    }
    void refuse() const override {
        throw Fault("PTX of " + kernel.name + ": the machine does not know: " + statement_);
    }

private:
    struct Declared {
        std::string name;
        uint32_t bytes = 0, align = 1;
    };
    // Of ".param .u64 name" or ".shared .align 16 .b8 name[256]".
    static Declared declaration(const std::string& text) {
        Declared declared;
        uint32_t size = 1;
        std::string word;
        for (size_t i = 0; i <= text.size(); i++) {
            const char c = i < text.size() ? text[i] : ' ';
            if (!std::isspace(static_cast<unsigned char>(c))) {
                word += c;
                continue;
            }
            if (word.size() > 2 && word[0] == '.' && std::strchr("bsuf", word[1]) &&
                std::isdigit(static_cast<unsigned char>(word[2])))
                size = uint32_t(std::atoi(word.c_str() + 2)) / 8;
            else if (!word.empty() && std::isdigit(static_cast<unsigned char>(word[0])))
                declared.align = uint32_t(std::atoi(word.c_str()));
            else if (!word.empty() && word[0] != '.')
                declared.name = word;
            word.clear();
        }
        declared.align = std::max(declared.align, size);
        declared.bytes = size;
        if (const size_t open = declared.name.find('['); open != std::string::npos) {
            declared.bytes = size * uint32_t(std::atoi(declared.name.c_str() + open + 1));
            declared.name.resize(open);
        }
        return declared;
    }

    // What is between the next braces.
    std::string body_at(size_t from) const {
        const size_t open = module_.find("\n{", from);
        size_t end = open;
        for (int depth = 0; end != std::string::npos && end < module_.size(); end++) {
            depth += (module_[end] == '{') - (module_[end] == '}');
            if (module_[end] == '}' && depth == 0) return module_.substr(open + 2, end - open - 2) + "\n";
        }
        throw Fault("PTX of " + kernel.name + " has no body");
    }

    // `scope`: before the names of registers and labels of a function's body, once per call.
    void decode_body(const std::string& body, const std::string& scope) {
        const std::string outer = std::exchange(scope_, scope);
        for (const std::string& text : statements(body)) decode_statement(text);
        scope_ = outer;
    }

    void decode_statement(const std::string& text) {
        statement_ = text;
        if (text.empty()) return;
        if (text.back() == ':') {
            labels_[scope_ + text.substr(0, text.size() - 1)] = uint32_t(kernel.code.size());
            return;
        }
        if (text[0] == '.') return declare(text);
        Instruction own;
        own.text = text;
        std::string rest = text;
        if (rest[0] == '@') {
            const size_t space = rest.find_first_of(" \t");
            own.guard_is_negated = rest[1] == '!';
            const Register guard =
                source(rest.substr(own.guard_is_negated ? 2 : 1, space - (own.guard_is_negated ? 2 : 1)), 4);
            own.guard = int(guard.at), own.guard_number = guard.number;
            rest = trimmed(rest.substr(space));
        }
        const size_t space = std::min(rest.find_first_of(" \t\n"), rest.size());
        const std::string opcode = rest.substr(0, space);
        const std::vector<std::string> args = split_operands(rest.substr(space));
        if (opcode == "call.uni" || opcode == "call") return call(args);
        if (opcode == "st.param.f64" || opcode == "st.param.b64") return move_argument(args, true);
        if (const size_t end = args.size() == 2 ? args[1].find_first_of("+]") : std::string::npos;
            opcode.compare(0, 9, "ld.param.") == 0 && end != std::string::npos &&
            arguments_.count(scope_ + args[1].substr(1, end - 1)))
            return move_argument(args, false);
        decode(*this, opcode, args, own);
        if (own.flow == Flow::branch) branches_.push_back({uint32_t(kernel.code.size()), scope_ + args.at(0)});
        if (own.flow == Flow::exit && !scope_.empty()) {  // the end of a function is that of its body
            own.flow = Flow::branch;
            branches_.push_back({uint32_t(kernel.code.size()), scope_ + "end"});
        }
        kernel.code.push_back(std::move(own));
    }

    void declare(const std::string& text) {
        if (text.compare(0, 5, ".reg ") == 0) {
            // ".reg .b32 %r<40>", or names one by one
            const size_t dot = text.find('.', 1), end = text.find_first_of(" \t", dot);
            const std::string type = text.substr(dot, end - dot);
            const int bytes = type == ".pred" ? 4 : std::atoi(type.c_str() + 2) == 64 ? 8 : 4;
            for (const std::string& name : split_operands(text.substr(end)))
                types_[name.substr(0, name.find('<'))] = bytes;
        } else if (text.compare(0, 7, ".shared") == 0 || text.compare(0, 6, ".local") == 0) {
            add_array(text);
        } else if (text.compare(0, 6, ".param") == 0) {
            const Declared declared = declaration(text);
            arguments_[scope_ + declared.name] = new_register(8);
        }
    }
    void add_array(const std::string& text) {
        const Declared declared = declaration(text);
        if (text[1] == 'l') {
            kernel.local_bytes = (kernel.local_bytes + declared.align - 1) / declared.align * declared.align;
            addresses_[declared.name] = kernel.local_bytes;
            kernel.local_bytes += declared.bytes;
            return;
        }
        const uint32_t align = std::max(declared.align, 16u);
        const uint32_t at = (kFirstShared + kernel.shared_bytes + align - 1) / align * align;
        kernel.shared.push_back({declared.name, at, declared.bytes});
        addresses_[declared.name] = at;
        kernel.shared_bytes = at + declared.bytes + 16 - kFirstShared;
    }

    // A call is the function's body, with registers of its own: nvcc leaves only libdevice's calls. An argument is a
    // register of eight bytes.
    void call(const std::vector<std::string>& args) {
        if (args.size() != 3) refuse();
        const std::string head = " " + args[1];
        size_t at = module_.find(head), close = 0;  // of its definition, not of its declaration
        for (;; at = module_.find(head, at + 1)) {
            if (at == std::string::npos) refuse();
            close = module_.find(")\n", at);
            if (std::strchr("(\n", module_[at + head.size()]) &&
                module_[module_.find_first_not_of(" \n", close + 1)] == '{')
                break;
        }
        const std::string scope = scope_ + args[1] + "#" + std::to_string(calls_++) + "/";
        const auto strip = [](const std::string& text) { return split_operands(text.substr(1, text.size() - 2)); };
        const size_t before = module_.rfind('(', at), open = module_.find('(', at);
        const std::string result =
            declaration(split_operands(module_.substr(before + 1, module_.find(')', before) - before - 1))[0]).name;
        arguments_[scope + result] = arguments_.at(scope_ + strip(args[0])[0]);
        const std::vector<std::string> formal = split_operands(module_.substr(open + 1, close - open - 1)),
                                       actual = strip(args[2]);
        for (size_t i = 0; i < formal.size(); i++)
            arguments_[scope + declaration(formal[i]).name] = arguments_.at(scope_ + actual.at(i));
        decode_body(body_at(close), scope);
        labels_[scope + "end"] = uint32_t(kernel.code.size());
    }
    void move_argument(const std::vector<std::string>& args, bool is_store) {
        const std::string& inside = args.at(is_store ? 0 : 1);
        const Register argument = arguments_.at(scope_ + inside.substr(1, inside.find_first_of("+]") - 1));
        Instruction own;
        own.text = statement_;
        decode(*this, "mov.b64", {"_", "0"}, own);
        own.from = {is_store ? source(args[1], 8) : argument};
        own.to = {is_store ? argument : target(args[0], 8)};
        kernel.code.push_back(std::move(own));
    }

    // "%rd" of "%rd12"; a name that was declared by itself stays.
    std::string type_key(const std::string& name) const {
        if (types_.count(name)) return name;
        return name.substr(0, name.find_last_not_of("0123456789") + 1);
    }
    Register register_of(const std::string& name, int bytes) {
        if (size_of(name) != bytes) refuse();
        const auto [found, is_new] = registers_.try_emplace(scope_ + name);
        if (is_new) found->second = new_register(bytes);
        return found->second;
    }
    Register special(const std::string& name) {
        for (const Constant& constant : kernel.constants)
            if (constant.special == name) return constant.reg;
        static const char* const known[] = {"%tid.", "%ntid.", "%ctaid.", "%nctaid.", "%laneid", "dynamic"};
        if (std::none_of(std::begin(known), std::end(known),
                         [&](const char* k) { return name.compare(0, std::strlen(k), k) == 0; }))
            refuse();
        kernel.constants.push_back({new_register(4), 0, 4, name});
        return kernel.constants.back().reg;
    }
    Register new_register(int bytes) {
        const Register made{kernel.file_bytes, kernel.num_registers};
        kernel.file_bytes += uint32_t(bytes * kLanes);
        kernel.num_registers++;
        return made;
    }

    // Arrays that a function declared outside of the kernels, if this kernel names them.
    void add_outer_arrays(const std::string& body) {
        for (size_t at = module_.find("\n.shared "); at != std::string::npos; at = module_.find("\n.shared ", at + 1)) {
            const std::string text = module_.substr(at + 1, module_.find(';', at) - at - 1);
            if (body.find(declaration(text).name) != std::string::npos) add_array(text);
        }
    }

    const std::string& module_;
    std::string scope_, statement_;
    std::map<std::string, int> types_;
    std::map<std::string, Register> registers_, arguments_;
    std::map<std::string, uint64_t> addresses_;  // within their space
    std::map<std::string, uint32_t> labels_;
    std::vector<std::pair<uint32_t, std::string>> branches_;
    int calls_ = 0;
};

}  // namespace

std::vector<std::string> Operands::list(const std::string& text) const {
    return text[0] == '{' ? split_operands(text.substr(1, text.size() - 2)) : std::vector<std::string>{text};
}

Module::Module(std::string text) : text_(std::move(text)) {
    const std::string entry = ".entry ";
    for (size_t at = text_.find(entry); at != std::string::npos; at = text_.find(entry, at + 1)) {
        const size_t begin = at + entry.size();
        entries_[text_.substr(begin, text_.find('(', begin) - begin)] = at;
    }
}

std::vector<std::string> Module::names() const {
    std::vector<std::string> names;
    for (const auto& [name, at] : entries_) names.push_back(name);
    return names;
}

const Kernel& Module::kernel(const std::string& name) {
    const auto found = decoded_.find(name);
    if (found != decoded_.end()) return found->second;
    Kernel kernel;
    kernel.name = name;
    const size_t at = entries_.at(name);
    Decoder decoder(text_, kernel);
    decoder.decode_entry(at);
    return decoded_[name] = std::move(kernel);
}

}  // namespace ptx
