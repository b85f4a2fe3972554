// Runs the engine of Perfetto's web page, a script for a worker of a browser, under node: the bytes of its protocol come in on stdin
// and go out on stdout. The argument is the folder that has engine_bundle.js and the WebAssembly beside it.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

// The engine reads its WebAssembly by a request that it waits for.
class XMLHttpRequest {
    open(_method, name) {
        this.name = name;
    }
    send() {
        this.response = fs.readFileSync(path.join(folder, path.basename(this.name)));
    }
}

// No more than a worker has: with node's own globals the engine takes itself for another build.
const worker = { XMLHttpRequest, performance, console: new console.Console(process.stderr) };
worker.self = worker;
worker.WorkerGlobalScope = Object;
worker.location = { href: "engine_bundle.js" };
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker, "engine_bundle.js");

const Bytes = vm.runInContext("Uint8Array", worker);
const port = { postMessage: (bytes) => process.stdout.write(bytes) };
worker.onmessage({ data: port });
process.stdin.on("data", (bytes) => port.onmessage({ data: new Bytes(bytes) }));
